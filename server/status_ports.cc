#include "server/status_ports.h"

#include <fmt/format.h>

#include <utility>

#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/bound_ports.h"
#include "server/config/control_store_setting.h"
#include "server/control/admin/metrics.h"
#include "server/daemon_options.h"
#include "server/metrics/exposition.h"
#include "server/metrics/process_sample.h"

namespace phub::server {
namespace {

// A browser sends long headers, also with cookies of other programs on the same host.
constexpr std::size_t kPageConnectionBytes = 32 << 10;

absl::Status Named(const char* what, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", what, MessageOf(status)));
}

}  // namespace

absl::Status StatusPorts::StartMetrics(const Settings& settings, const http::Health& health,
                                       ControlThread& control, const Clock& clock) {
  if (settings.metrics_listen.empty()) return absl::OkStatus();
  const net::HostAndPort address = Address(settings.metrics_listen);
  const auto write = [&control](const http::HttpCounts& counts) {
    Metrics::Sampling sampling;
    const auto more = [&](Control& each) { return each.metrics().SampleMore(sampling); };
    while (!control.Run({TurnKind::kMetrics, "sample"}, more)) {
    }
    return WriteExposition(sampling.sample, ReadProcessSample(), counts);
  };
  auto created =
      http::MetricsServer::Create("phubd", address.host, address.port, write, health, clock);
  if (!created.ok()) return Named("metrics (metrics_listen)", created.status());
  metrics_ = *std::move(created);
  return absl::OkStatus();
}

absl::Status StatusPorts::StartHealth(const Settings& settings, http::Health health,
                                      const Clock& clock) {
  if (settings.health_listen.empty()) return absl::OkStatus();
  const net::HostAndPort address = Address(settings.health_listen);
  auto created = http::HttpServer::Create(
      {.host = address.host, .port = address.port, .thread_name = "health"},
      [health = std::move(health)](const http::HttpRequest& request, const http::HttpCounts&) {
        return http::AnswerHealth(request.path, health)
            .value_or(http::TextReply(404, "phubd's health is at /healthz and /readyz\n"));
      },
      clock);
  if (!created.ok()) return Named("health (health_listen)", created.status());
  health_ = *std::move(created);
  LogInfo("event=health_serving health={}", UrlsOf(health_->addresses(), "/readyz"));
  return absl::OkStatus();
}

absl::Status StatusPorts::Start(const Settings& settings, http::Health health,
                                ControlThread& control, const Directory& directory,
                                const Clock& clock) {
  if (absl::Status status = StartMetrics(settings, health, control, clock); !status.ok())
    return status;
  if (settings.page_listen.empty()) return absl::OkStatus();
  const net::HostAndPort address = Address(settings.page_listen);
  page_ = std::make_unique<Page>(
      Page::Options{
          .host = address.host,
          .identities = HasIdentities(settings),
          .racks = absl::StrSplit(settings.racks, absl::ByAnyChar(", "), absl::SkipEmpty())},
      control, directory, clock);
  auto created = http::HttpServer::Create(
      {.host = address.host,
       .port = address.port,
       .thread_name = "page",
       .connection_memory_bytes = kPageConnectionBytes},
      [page = page_.get()](const http::HttpRequest& request, const http::HttpCounts&) {
        return page->Answer(request);
      },
      clock);
  if (!created.ok()) return Named("page (page_listen)", created.status());
  server_ = *std::move(created);
  return absl::OkStatus();
}

void StatusPorts::Stop() {
  metrics_.reset();
  health_.reset();
  server_.reset();
  page_.reset();
}

}  // namespace phub::server
