#include "common/http/metrics_server.h"

#include "common/http/text_format.h"

namespace phub::http {
namespace {

// For the port's thread.
class MetricsText {
 public:
  MetricsText(MetricsServer::Write write, const Clock& clock)
      : write_(std::move(write)), clock_(clock) {}

  HttpReply Reply(const HttpCounts& counts) {
    const TimeNs now = clock_.Now();
    if (text_ == nullptr || now - since_ >= MetricsServer::kTextAgeMax) {
      text_ = std::make_shared<const std::string>(write_(counts));
      since_ = now;
    }
    return {200, text_, kTextFormatContentType};
  }

 private:
  const MetricsServer::Write write_;
  const Clock& clock_;
  std::shared_ptr<const std::string> text_;
  TimeNs since_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& program,
                                                                     const std::string& host,
                                                                     std::uint16_t port,
                                                                     Write write, Health health,
                                                                     const Clock& clock) {
  const auto text = std::make_shared<MetricsText>(std::move(write), clock);
  const auto answer = [text, program, health = std::move(health)](const HttpRequest& request,
                                                                  const HttpCounts& counts) {
    if (request.path == "/metrics") return text->Reply(counts);
    if (auto reply = AnswerHealth(request.path, health)) return *std::move(reply);
    return TextReply(
        404, program + "'s metrics are at /metrics, and its health at /healthz and /readyz\n");
  };
  auto server =
      HttpServer::Create({.host = host, .port = port, .thread_name = "metrics"}, answer, clock);
  if (!server.ok()) return server.status();
  return std::unique_ptr<MetricsServer>(new MetricsServer(*std::move(server)));
}

}  // namespace phub::http
