#include "server/transports/shm/shared_memory_gate.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/log.h"
#include "server/control/lanes/lanes.h"
#include "server/control/lanes/rank_memories.h"

namespace phub::server {
namespace {

PeerProcess ProcessOf(const transport::PeerCredentials& credentials) {
  return {.pid = credentials.pid, .uid = credentials.uid};
}

}  // namespace

ControlSharedMemoryGate::ControlSharedMemoryGate(ControlThread& thread,
                                                 std::uint8_t transport_index)
    : thread_(thread), transport_index_(transport_index) {}

wire::LaneRefusal ControlSharedMemoryGate::Admit(const wire::LaneHello& hello,
                                                 const transport::PeerCredentials& credentials) {
  bool logs = false;
  const wire::LaneRefusal refusal = thread_.Run([&](Control& control) {
    const wire::LaneRefusal result = control.lanes().AdmitLane(hello, ProcessOf(credentials));
    logs = result != wire::LaneRefusal::kNone &&
           control.lanes().MayLogRefusalOf(transport::UserOf(credentials));
    return result;
  });
  if (logs) {
    LogWarning("event=lane_refused reason={} rank={} core={} peer=\"{}\"", wire::ToString(refusal),
               hello.rank.value, hello.core.value, transport::ToString(credentials));
  }
  return refusal;
}

absl::StatusOr<transport::LaneMemory> ControlSharedMemoryGate::Memory(
    const wire::LaneHello& hello) {
  return thread_.Run(
      [&](Control& control) { return control.rank_memories().SharedLaneMemory(hello); });
}

void ControlSharedMemoryGate::Attach(const wire::LaneHello& hello,
                                     std::unique_ptr<transport::Connection> connection,
                                     std::string peer_address) {
  constexpr std::string_view kName = "shm";
  std::string_view process = peer_address;  // "shm pid 4711 uid 1000"
  if (process.starts_with(kName)) process.remove_prefix(std::min(kName.size() + 1, process.size()));
  thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) {
    control.lanes().AttachLane(hello, std::move(connection), transport_index_, kName, process);
  });
}

wire::LaneRefusal ControlSharedMemoryGate::AdmitBatch(const wire::SharedBatchRequest& request,
                                                      const transport::PeerCredentials& credentials,
                                                      transport::BatchMemory& memory) {
  bool logs = false;
  const wire::LaneRefusal refusal = thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) {
    const wire::LaneRefusal result =
        control.rank_memories().AdmitBatch(request, ProcessOf(credentials), memory);
    logs = result != wire::LaneRefusal::kNone &&
           control.lanes().MayLogRefusalOf(transport::UserOf(credentials));
    return result;
  });
  if (logs) {
    LogWarning("event=batch_refused reason={} rank={} batch={} peer=\"{}\"",
               wire::ToString(refusal), request.rank.value, request.batch,
               transport::ToString(credentials));
  }
  return refusal;
}

}  // namespace phub::server
