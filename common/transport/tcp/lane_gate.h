// The interface to the part of the daemon that decides which new data connections become lanes.
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

  // Decides whether this hello becomes a lane, and consumes the nonce. kNone admits it; Attach
  // always follows then. If the peer has closed the connection by then, the transport that serves
  // it reports that.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) = 0;
  // Only for listeners with TLS: finds the valid nonce of the lane that this hello asks for.
  // Ignores the hello's own nonce and consumes none. False: there is no valid nonce, or no TLS.
  virtual bool FindNonce(const wire::LaneHello& /*hello*/, wire::Nonce& /*nonce*/) { return false; }
  // Hands over the connection, after the welcome was sent to the peer.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string peer_address) = 0;
};

}  // namespace phub::transport
