#include "server/control/lane_gate.h"

#include <utility>

#include "common/base/log.h"

namespace phub::server {

ControlLaneGate::ControlLaneGate(ControlThread& thread, std::uint8_t transport_index,
                                 std::string transport_name)
    : thread_(thread),
      transport_index_(transport_index),
      transport_name_(std::move(transport_name)) {}

wire::LaneRefusal ControlLaneGate::Admit(const wire::LaneHello& hello,
                                         std::string_view peer_address) {
  const wire::LaneRefusal refusal =
      thread_.Run([&](Control& control) { return control.AdmitLane(hello); });
  if (refusal != wire::LaneRefusal::kNone) {
    LogWarning("event=lane_refused reason={} rank={} core={} peer={}", wire::ToString(refusal),
               hello.rank.value, hello.core.value, peer_address);
  }
  return refusal;
}

void ControlLaneGate::Attach(const wire::LaneHello& hello,
                             std::unique_ptr<transport::Connection> connection,
                             std::string peer_address) {
  thread_.Run([&](Control& control) {
    control.AttachLane(hello, std::move(connection), transport_index_, transport_name_,
                       peer_address);
  });
}

}  // namespace phub::server
