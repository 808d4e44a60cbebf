// Accepts data connections of a daemon: reads the hello, asks the gate, answers, hands over.
// pending_lanes.h says what is bounded before that. Cold path: one thread of the daemon calls
// PollOnce in a loop; counters() may be read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/pending_lanes.h"
#include "common/transport/stream/stream_transport.h"
#include "common/transport/tcp/lane_gate.h"
#include "common/transport/tcp/lane_kind.h"

namespace phub::transport {

struct TcpListenerOptions {
  std::string host = "127.0.0.1";  // name or address to bind; "" or "::" is every address
  std::uint16_t port = 0;          // 0: the kernel chooses
  DurationNs hello_timeout = 3 * kSecond;
  std::uint32_t pending_max = 1024;  // connections without a whole hello
  std::uint32_t pending_per_address_max = 64;
  // Lanes are TLS 1.3, with keys that the gate knows; without it they are refused. Lanes of another
  // kind are asked for without TLS in any case.
  bool tls = false;
  StreamLimits limits{};  // of the connections it makes
};

class TcpListener {
 public:
  // Gate, clock and other kinds of lane outlive the listener. Binds and listens, or says why not.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Create(const TcpListenerOptions& options,
                                                             LaneGate& gate, const Clock& clock,
                                                             std::vector<LaneKind*> others = {});
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  std::uint16_t port() const;  // the one that is bound

  // Waits for at most `timeout` (rounded down to milliseconds) and serves what is ready, in bounded
  // time. True if anything was.
  bool PollOnce(DurationNs timeout);

  const LaneListenerCounters& counters() const;
  std::uint32_t pending_count() const;  // the listener's thread

 private:
  struct Impl;
  explicit TcpListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::transport
