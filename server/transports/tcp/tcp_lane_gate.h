// Lets a listener ask control which connections become lanes. Called from the listener's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/transport/tcp/lane_gate.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

class ControlLaneGate final : public transport::LaneGate {
 public:
  // transport_index: which of every core loop's transports serves the listener's connections. tls:
  // whether they use TLS. The thread must outlive the gate.
  explicit ControlLaneGate(ControlThread& thread, std::uint8_t transport_index = 0,
                           bool tls = false);

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) override;
  bool FindNonce(const wire::LaneHello& hello, wire::Nonce& nonce) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string peer_address) override;

 private:
  ControlThread& thread_;
  const std::uint8_t transport_index_;
  const bool tls_;
};

}  // namespace phub::server
