// The metrics port: answers GET and HEAD of /metrics, and of /healthz and /readyz for supervisors
// such as Kubernetes, over HTTP. One thread of its own serves all
// connections in turn, so scraping takes bounded memory and at most one thread's time. Core loops
// are not involved.
//
// Bounds:
//   - at most kConnectionsMax connections; others wait in the kernel
//   - kConnectionMemoryBytes for each connection
//   - one request per connection: sent within kRequestTimeout, and answered within kAnswerTimeout,
//     both counted from the accept
//   - the text is regenerated at most once every kTextAgeMax
//
// Threads: the owner creates and destroys it; the port's thread calls `write`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/net/address.h"

namespace phub::http {

// Counts of the metrics port itself.
struct HttpCounts {
  std::map<unsigned, std::uint64_t> answers;  // [status code]
  std::uint64_t connections_cut = 0;          // timed out while sending a request or reading
};

class MetricsServer {
 public:
  static constexpr std::uint32_t kConnectionsMax = 64;
  static constexpr std::size_t kConnectionMemoryBytes = 4096;
  static constexpr DurationNs kRequestTimeout = 3 * kSecond;
  static constexpr DurationNs kAnswerTimeout = 10 * kSecond;
  static constexpr DurationNs kTextAgeMax = 100 * kMillisecond;

  // kAlive: the process works, so a restart would not help. kReady: it accepts jobs.
  enum class Question : std::uint8_t { kAlive, kReady };
  // OK: yes. Otherwise the message says why not.
  using Health = std::function<absl::Status(Question)>;

  // Returns the page, in Prometheus' text format.
  using Write = std::function<std::string(const HttpCounts&)>;

  // `program`: its name, for answers to other paths. Binds host:port, all addresses of the host;
  // port 0 picks any free port. `write`, `health` and `clock` must outlive the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(const std::string& program,
                                                               const std::string& host,
                                                               std::uint16_t port, Write write,
                                                               Health health, const Clock& clock);
  ~MetricsServer();  // closes every connection
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::uint16_t port() const;
  const std::vector<net::SocketAddress>& addresses() const;  // the bound addresses

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::http
