// The engine's part in sums in the network: messages of streams, and datagrams.
#include "client/engine_impl.h"
#include "client/push/ready_queue.h"
#include "common/base/check.h"

namespace phub::client {

void Engine::Impl::MakeSums() {
  if (config.sum_sockets.empty()) return;
  PHUB_CHECK(config.sum_sockets.size() == lanes.size(), "sockets={}", config.sum_sockets.size());
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    sums.push_back(std::make_unique<LaneSums>(lanes[l], keys, *config.sum_sockets[l],
                                              config.sum_block, config.world_size));
    lanes[l].sums = sums.back().get();
  }
}

bool Engine::Impl::IsOfStream(wire::MessageKind kind) {
  return kind == wire::MessageKind::kStreamIs || kind == wire::MessageKind::kAssign ||
         kind == wire::MessageKind::kUseTcp;
}

Received Engine::Impl::TakeStreamMessage(Lane& lane, const transport::ReceivedMessage& message) {
  const wire::MessageHeader& header = message.header;
  if (lane.sums == nullptr) return {.fault = LaneFault::kUnexpectedKind};
  if (header.incarnation != config.incarnation ||
      header.membership_epoch != config.membership_epoch)
    return {.fault = LaneFault::kWrongJob};
  const std::span payload(message.inline_payload.data(), header.payload_bytes);
  const LaneFault fault = lane.sums->Take(header, payload, clock.Now());
  if (fault != LaneFault::kNone) return {.fault = fault};
  if (lane.sums->all_changed()) {
    for (std::uint32_t k = 0; k < lane.keys.size(); ++k) QueueAgain(lane, k);
    return {};
  }
  for (const std::uint32_t chunk : lane.sums->again())
    QueueAgain(lane, lane.chunks[chunk].lane_key);
  return {};
}

// The chunks of the lane key go another way, which may wait for something else.
void Engine::Impl::QueueAgain(Lane& lane, std::uint32_t lane_key) {
  RemoveLaneKey(lane, lane_key);
  QueueUnsent(lane, keys, lane_key, *transports[lane.transport_index]);
}

bool Engine::Impl::PollSums(TimeNs now) {
  if (stopping) return false;  // callers may change gradients as soon as the lanes are closed
  bool received = false;
  for (const auto& each : sums) received |= each->Poll(now);
  return received;
}

}  // namespace phub::client
