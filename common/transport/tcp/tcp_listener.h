// Accepts data connections of a daemon: reads the hello, asks the gate, answers, and hands the
// connection over. pending_lanes.h describes the limits for peers that wait. Off the data path: one
// thread of the daemon calls PollOnce in a loop; any thread may read counters().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/net/address.h"
#include "common/transport/pending_lanes.h"
#include "common/transport/stream/stream_transport.h"
#include "common/transport/tcp/lane_gate.h"
#include "common/transport/tcp/lane_kind.h"

namespace phub::transport {

struct TcpListenerOptions {
  std::string host = "127.0.0.1";  // a name binds all its addresses; "" or "::" binds every address
  std::uint16_t port = 0;          // 0: the kernel chooses
  DurationNs hello_timeout = 3 * kSecond;
  std::uint32_t pending_max = 1024;  // connections without a complete hello
  std::uint32_t pending_per_address_max = 64;
  // Lanes must use TLS 1.3, with keys from the gate; lanes without TLS are refused. Requests for
  // lanes of another kind use no TLS in any case.
  bool tls = false;
  StreamLimits limits{};  // for new connections
};

class TcpListener {
 public:
  // Binds and listens, or returns the reason for the failure. Gate, clock and the other kinds of
  // lanes must outlive the listener.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Create(const TcpListenerOptions& options,
                                                             LaneGate& gate, const Clock& clock,
                                                             std::vector<LaneKind*> others = {});
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  std::uint16_t port() const;                                // the bound port
  const std::vector<net::SocketAddress>& addresses() const;  // the bound addresses

  // Waits for at most `timeout` (rounded down to milliseconds) and serves the sockets that are
  // ready, in bounded time. True if anything was ready.
  bool PollOnce(DurationNs timeout);

  const LaneListenerCounters& counters() const;
  std::uint32_t pending_count() const;  // call from the listener's thread

 private:
  struct Impl;
  explicit TcpListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::transport
