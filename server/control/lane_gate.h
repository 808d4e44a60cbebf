// Lets a listener ask control which connections become lanes. Called from the listener's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/transport/tcp/lane_gate.h"
#include "server/control/control_thread.h"

namespace phub::server {

class ControlLaneGate final : public transport::LaneGate {
 public:
  // transport_index: which of every core loop's transports serves the listener's connections;
  // transport_name: what administrators read ("tcp"). The thread outlives the gate.
  explicit ControlLaneGate(ControlThread& thread, std::uint8_t transport_index = 0,
                           std::string transport_name = "tcp");

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string peer_address) override;

 private:
  ControlThread& thread_;
  const std::uint8_t transport_index_;
  const std::string transport_name_;
};

}  // namespace phub::server
