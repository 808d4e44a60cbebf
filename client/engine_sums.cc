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
  for (std::size_t l = 0; l < sums.size(); ++l) {
    Lane& lane = lanes[l];
    received |= lane.sums->Poll(now);
    TakeParameters(lane);
    AskForParameters(lane);
  }
  return received;
}

void Engine::Impl::TakeParameters(Lane& lane) {
  for (const std::uint32_t index : lane.sums->complete()) {
    ++counters.replies;
    EngineKey* const completed = CompleteChunk(lane, keys, index);
    if (completed != nullptr) CompleteRound(*completed);
  }
}

// A question that finds no room is asked again when its time comes again.
void Engine::Impl::AskForParameters(Lane& lane) {
  for (const aggregation::ParameterBlocks::Question& question : lane.sums->questions()) {
    const LaneChunk& chunk = lane.chunks[question.chunk.value];
    transport::SendRequest request;
    request.header.version = wire::kStreamVersion;
    request.header.kind = wire::MessageKind::kMissing;
    request.header.incarnation = config.incarnation;
    request.header.membership_epoch = config.membership_epoch;
    request.header.chunk = question.chunk;
    request.header.iteration = IterationOf(*keys[lane.keys[chunk.lane_key].key], chunk);
    request.payload = lane.sums->PayloadOf(question);
    request.header.payload_bytes = static_cast<std::uint32_t>(request.payload.size());
    request.connections = {&lane.connection, 1};
    if (transports[lane.transport_index]->Post({&request, 1}) == 1) ++counters.questions_sent;
  }
}

}  // namespace phub::client
