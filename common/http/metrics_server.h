// The metrics port: answers GET and HEAD of /metrics, and of /healthz and /readyz for supervisors
// such as Kubernetes, with the bounds of HttpServer. The text is regenerated at most once every
// kTextAgeMax.
//
// Threads: the owner creates and destroys it; the port's thread calls `write`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/http/health_paths.h"
#include "common/http/http_server.h"
#include "common/net/address.h"

namespace phub::http {

class MetricsServer {
 public:
  static constexpr std::uint32_t kConnectionsMax = HttpServer::kConnectionsMax;
  static constexpr DurationNs kRequestTimeout = HttpServer::kRequestTimeout;
  static constexpr DurationNs kAnswerTimeout = HttpServer::kAnswerTimeout;
  static constexpr DurationNs kTextAgeMax = 100 * kMillisecond;

  using Question = HealthQuestion;

  // Returns the page, in Prometheus' text format.
  using Write = std::function<std::string(const HttpCounts&)>;

  // `program`: its name, for answers to other paths. Binds host:port, all addresses of the host;
  // port 0 picks any free port. `write`, `health` and `clock` must outlive the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& program,
                                                               const std::string& host,
                                                               std::uint16_t port, Write write,
                                                               Health health, const Clock& clock);

  std::uint16_t port() const { return server_->port(); }
  const std::vector<net::SocketAddress>& addresses() const { return server_->addresses(); }

 private:
  explicit MetricsServer(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
  std::unique_ptr<HttpServer> server_;
};

}  // namespace phub::http
