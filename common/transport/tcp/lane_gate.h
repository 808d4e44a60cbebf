// Who decides, in the daemon, which new data connections become lanes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// All calls come from the listener's thread.
class LaneGate {
 public:
  virtual ~LaneGate() = default;

  // Whether this hello becomes a lane. Consumes the nonce. kNone admits it, and then Attach
  // follows, always: if the peer is gone by then, the connection reports it when it is served.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) = 0;
  // Of a listener with TLS: the nonce of the lane that this hello asks for, if there is a good one.
  // The hello's own is not looked at, and none is consumed. False: there is none, or no TLS.
  virtual bool FindNonce(const wire::LaneHello& /*hello*/, wire::Nonce& /*nonce*/) { return false; }
  // Hands over the connection. The peer has been told that it is welcome.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string peer_address) = 0;
};

}  // namespace phub::transport
