#include "client/pull/receiver.h"

namespace phub::client {
namespace {

void FreeSlot(Lane& lane, LaneChunk& chunk) {
  lane.free_slots.push_back(chunk.inflight);
  chunk.inflight = kNoSlot;
}

Received ReceiveParameters(Lane& lane, std::span<EngineKey* const> keys,
                           const wire::MessageHeader& header, EngineCounters& counters) {
  const std::uint32_t index = header.chunk.value;
  if (index >= lane.chunks.size() || header.slot.value != index)
    return {.fault = LaneFault::kChunkRange};
  LaneChunk& chunk = lane.chunks[index];
  EngineKey& key = *keys[lane.keys[chunk.lane_key].key];
  if (chunk.phase != LaneChunk::Phase::kSent) return {.fault = LaneFault::kNotAsked};
  if (header.iteration != key.iteration) return {.fault = LaneFault::kIteration};
  if (header.type != key.parameter_type) return {.fault = LaneFault::kType};
  if (header.payload_bytes != chunk.Bytes(key.parameter_type))
    return {.fault = LaneFault::kPayloadBytes};

  chunk.phase = LaneChunk::Phase::kIdle;
  lane.landing[index] = {};
  if (key.pulling) --lane.pulls_under_way;
  // A reply frees only the slot that the chunk still holds: a credit may have come before it, and
  // what was sent from shared memory never had one.
  if (chunk.inflight != kNoSlot) FreeSlot(lane, chunk);
  ++counters.replies;
  return {.completed = --key.chunks_left == 0 ? &key : nullptr};
}

Received ReceiveCredit(const EngineConfig& config, Lane& lane, const wire::MessageHeader& header,
                       EngineCounters& counters) {
  if (header.chunk.value >= lane.chunks.size()) return {.fault = LaneFault::kChunkRange};
  if (header.slot.value >= config.slots_per_lane) return {.fault = LaneFault::kSlotRange};
  LaneChunk& chunk = lane.chunks[header.chunk.value];
  if (chunk.inflight == header.slot) {
    FreeSlot(lane, chunk);
    ++counters.credits;
  } else {
    ++counters.credits_late;
  }
  return {};
}

}  // namespace

Received Receive(const EngineConfig& config, Lane& lane, std::span<EngineKey* const> keys,
                 const wire::MessageHeader& header, EngineCounters& counters) {
  if (header.incarnation != config.incarnation ||
      header.membership_epoch != config.membership_epoch)
    return {.fault = LaneFault::kWrongJob};
  switch (header.kind) {
    case wire::MessageKind::kParameters:
      return ReceiveParameters(lane, keys, header, counters);
    case wire::MessageKind::kCredit:
      return ReceiveCredit(config, lane, header, counters);
    case wire::MessageKind::kGradient:
    case wire::MessageKind::kRecord:
    case wire::MessageKind::kPull:
      break;
  }
  return {.fault = LaneFault::kUnexpectedKind};
}

}  // namespace phub::client
