#include "client/pull/receiver.h"

#include <bit>

#include "client/sums/lane_sums.h"
#include "common/base/check.h"

namespace phub::client {
namespace {

bool WaitsForDecision(const EngineConfig& config, const EngineKey& key) {
  return config.apply_iteration && !key.collective && !key.pulling &&
         key.operation == wire::RoundOperation::kReduce;
}

Received ReceiveParameters(const EngineConfig& config, Lane& lane, std::span<EngineKey* const> keys,
                           const wire::MessageHeader& header, EngineCounters& counters) {
  const std::uint32_t index = header.chunk.value;
  if (index >= lane.chunks.size() || header.slot.value != index)
    return {.fault = LaneFault::kChunkRange};
  LaneChunk& chunk = lane.chunks[index];
  if (chunk.is_hole()) return {.fault = LaneFault::kChunkRange};
  EngineKey& key = *keys[lane.keys[chunk.lane_key].key];
  if (chunk.phase != LaneChunk::Phase::kSent) return {.fault = LaneFault::kNotAsked};
  if (header.iteration != IterationOf(key, chunk)) return {.fault = LaneFault::kIteration};
  if (header.type != ReplyType(key)) return {.fault = LaneFault::kType};
  if (header.payload_bytes != ReplyBytes(key, lane.keys[chunk.lane_key], chunk))
    return {.fault = LaneFault::kPayloadBytes};
  if (WaitsForDecision(config, key) && chunk.sum != LaneChunk::Sum::kDecided)
    return {.fault = LaneFault::kNotDecided};

  ++counters.replies;
  return {.completed = CompleteChunk(lane, keys, index)};
}

// May arrive again with the same values, if the chunk was sent again on a new connection.
Received ReceiveSummed(const EngineConfig& config, Lane& lane, std::span<EngineKey* const> keys,
                       const wire::MessageHeader& header) {
  if (header.chunk.value >= lane.chunks.size()) return {.fault = LaneFault::kChunkRange};
  LaneChunk& chunk = lane.chunks[header.chunk.value];
  if (chunk.is_hole()) return {.fault = LaneFault::kChunkRange};
  const EngineKey& key = *keys[lane.keys[chunk.lane_key].key];
  if (chunk.phase != LaneChunk::Phase::kSent || !WaitsForDecision(config, key))
    return {.fault = LaneFault::kNotAsked};
  if (header.iteration != key.iteration) return {.fault = LaneFault::kIteration};
  if (chunk.inflight != kNoSlot) lane.ReturnSlot(chunk);
  if (chunk.sum != LaneChunk::Sum::kUnknown) return {};
  chunk.sum = LaneChunk::Sum::kTold;
  chunk.summed_flags = header.flags;
  chunk.squared_norm = std::bit_cast<double>(header.value_bits);
  return {.summed = true};
}

Received ReceiveCredit(const EngineConfig& config, Lane& lane, const wire::MessageHeader& header,
                       EngineCounters& counters) {
  if (header.chunk.value >= lane.chunks.size()) return {.fault = LaneFault::kChunkRange};
  if (header.slot.value >= config.slots_per_lane) return {.fault = LaneFault::kSlotRange};
  LaneChunk& chunk = lane.chunks[header.chunk.value];
  if (chunk.inflight == header.slot) {
    lane.ReturnSlot(chunk);
    ++counters.credits;
  } else {
    ++counters.credits_late;
  }
  return {};
}

}  // namespace

EngineKey* CompleteChunk(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t index) {
  LaneChunk& chunk = lane.chunks[index];
  EngineKey& key = *keys[lane.keys[chunk.lane_key].key];
  PHUB_CHECK(chunk.phase == LaneChunk::Phase::kSent, "chunk={}", index);
  if (lane.sums != nullptr) lane.sums->NoteParameters(index, IterationOf(key, chunk));
  chunk.phase = LaneChunk::Phase::kIdle;
  if (key.pooled) ++chunk.pool_rounds;
  lane.landing[index] = {};
  --lane.chunks_sent;
  if (key.pulling) --lane.pulls_under_way;
  // The chunk may hold no slot: a credit may have freed it before, and a gradient in shared memory
  // or an announcement never has one.
  if (chunk.inflight != kNoSlot) lane.ReturnSlot(chunk);
  return --key.chunks_left == 0 ? &key : nullptr;
}

Received Receive(const EngineConfig& config, Lane& lane, std::span<EngineKey* const> keys,
                 const wire::MessageHeader& header, EngineCounters& counters) {
  if (header.incarnation != config.incarnation ||
      header.membership_epoch != config.membership_epoch)
    return {.fault = LaneFault::kWrongJob};
  switch (header.kind) {
    case wire::MessageKind::kParameters:
      return ReceiveParameters(config, lane, keys, header, counters);
    case wire::MessageKind::kCredit: return ReceiveCredit(config, lane, header, counters);
    case wire::MessageKind::kSummed: return ReceiveSummed(config, lane, keys, header);
    case wire::MessageKind::kDecision:
    case wire::MessageKind::kGradient:
    case wire::MessageKind::kHyperParameters:
    case wire::MessageKind::kPull:
    case wire::MessageKind::kAnnounce:
    case wire::MessageKind::kStreamIs:
    case wire::MessageKind::kAssign:
    case wire::MessageKind::kUseTcp:
    case wire::MessageKind::kMissing:
    case wire::MessageKind::kKeepAlive: break;  // the engine has taken it
  }
  return {.fault = LaneFault::kUnexpectedKind};
}

}  // namespace phub::client
