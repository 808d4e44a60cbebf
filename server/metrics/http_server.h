// The metrics port: answers GET /metrics over HTTP and nothing else. A thread of its own serves all
// connections in turn, so that whoever scrapes, however many and however slowly, takes bounded
// memory and never more than one thread's time; core loops are not involved.
//
// Bounds: kConnectionsMax at once, others wait in the kernel; kConnectionMemoryBytes each; a
// connection is for one request, has kRequestTimeout to ask and kAnswerTimeout in all; the text is
// made anew at most every kTextAgeMax.
//
// Threads: creation and destruction are the owner's; `collect` is called by the port's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/metrics/exposition.h"

namespace phub::server {

class MetricsServer {
 public:
  static constexpr std::uint32_t kConnectionsMax = 64;
  static constexpr std::size_t kConnectionMemoryBytes = 4096;
  static constexpr DurationNs kRequestTimeout = 3 * kSecond;
  static constexpr DurationNs kAnswerTimeout = 10 * kSecond;
  static constexpr DurationNs kTextAgeMax = 100 * kMillisecond;

  // Binds host:port, port 0 for any free one. `collect` and `clock` outlive the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(
      const std::string& host, std::uint16_t port, std::function<MetricsSample()> collect,
      const Clock& clock);
  ~MetricsServer();  // closes every connection
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::uint16_t port() const;

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
