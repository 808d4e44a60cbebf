#include "client/push/sender.h"

#include "client/push/ready_queue.h"
#include "common/base/check.h"

namespace phub::client {
namespace {

// The first chunk at or after `from` that is kReady, or the end of the lane key's range.
std::uint32_t NextReady(const Lane& lane, const LaneKey& lane_key, std::uint32_t from) {
  const std::uint32_t end = lane_key.first + lane_key.count;
  while (from < end && lane.chunks[from].phase != LaneChunk::Phase::kReady) ++from;
  return from;
}

}  // namespace

void StartLaneKey(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t index) {
  LaneKey& lane_key = lane.keys[index];
  for (std::uint32_t c = lane_key.first; c < lane_key.first + lane_key.count; ++c) {
    PHUB_CHECK(lane.chunks[c].phase == LaneChunk::Phase::kIdle, "chunk={}", c);
    lane.chunks[c].phase = LaneChunk::Phase::kReady;
  }
  lane_key.cursor = lane_key.first;
  QueueLaneKey(lane, keys, index);
}

void ResetLane(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t slot_count) {
  lane.free_slots.clear();
  for (std::uint32_t s = slot_count; s > 0; --s) lane.free_slots.push_back(SlotIndex{s - 1});
  for (LaneChunk& chunk : lane.chunks) {
    chunk.inflight = kNoSlot;
    if (chunk.phase == LaneChunk::Phase::kSent) chunk.phase = LaneChunk::Phase::kReady;
  }
  for (transport::LandingSlot& slot : lane.landing) slot = {};
  for (std::uint32_t k = 0; k < lane.keys.size(); ++k) {
    LaneKey& lane_key = lane.keys[k];
    lane_key.announced = RecordVersion{1};
    lane_key.cursor = NextReady(lane, lane_key, lane_key.first);
    if (lane_key.cursor < lane_key.first + lane_key.count) QueueLaneKey(lane, keys, k);
  }
}

Sender::Sender(const EngineConfig& config, EngineCounters& counters)
    : config_(config), counters_(counters) {}

bool Sender::Send(Lane& lane, std::span<EngineKey* const> keys, transport::Transport& transport) {
  bool sent = false;
  while (!lane.ready.empty() && !lane.free_slots.empty()) {
    const std::size_t count = Gather(lane, keys);
    const std::size_t taken = transport.Post({requests_.data(), count});
    Account(lane, keys, taken);
    Undo(lane, keys, taken, count);
    sent = sent || taken > 0;
    if (taken < count) break;  // the transport is full: poll first
  }
  return sent;
}

std::size_t Sender::Gather(Lane& lane, std::span<EngineKey* const> keys) {
  std::size_t count = 0;
  while (count < kBurst && !lane.ready.empty() && !lane.free_slots.empty()) {
    const std::uint32_t index = FirstLaneKey(lane);
    EngineKey& key = *keys[lane.keys[index].key];
    if (lane.keys[index].announced < key.record) {
      GatherRecord(lane, key, index, count++);
      continue;
    }
    GatherGradient(lane, key, index, count++);
    if (lane.keys[index].cursor == lane.keys[index].first + lane.keys[index].count)
      PopLaneKey(lane, keys);
  }
  return count;
}

void Sender::GatherRecord(Lane& lane, const EngineKey& key, std::uint32_t index, std::size_t at) {
  LaneKey& lane_key = lane.keys[index];
  Entry& entry = entries_[at];
  entry.lane_key = index;
  entry.is_record = true;
  entry.announced_before = lane_key.announced;
  wire::EncodeHyperParameters(key.record_values, entry.record_bytes);
  lane_key.announced = key.record;

  transport::SendRequest& request = requests_[at];
  request = {};
  request.header.kind = wire::MessageKind::kRecord;
  request.header.incarnation = config_.incarnation;
  request.header.membership_epoch = config_.membership_epoch;
  request.header.key = key.index;
  request.header.record = key.record;
  request.header.payload_bytes = static_cast<std::uint32_t>(entry.record_bytes.size());
  request.payload = entry.record_bytes;
  request.connections = {&lane.connection, 1};
}

void Sender::GatherGradient(Lane& lane, EngineKey& key, std::uint32_t index, std::size_t at) {
  LaneKey& lane_key = lane.keys[index];
  LaneChunk& chunk = lane.chunks[lane_key.cursor];
  Entry& entry = entries_[at];
  entry.lane_key = index;
  entry.is_record = false;
  entry.chunk = lane_key.cursor;

  chunk.phase = LaneChunk::Phase::kSent;
  chunk.inflight = lane.free_slots.back();
  lane.free_slots.pop_back();
  lane.landing[entry.chunk] = {.data = key.parameters + chunk.offset_bytes,
                               .bytes_max = chunk.bytes};

  transport::SendRequest& request = requests_[at];
  request = {};
  request.header.kind = wire::MessageKind::kGradient;
  request.header.incarnation = config_.incarnation;
  request.header.membership_epoch = config_.membership_epoch;
  request.header.iteration = Iteration{key.completed.value + 1};
  request.header.chunk = ChunkIndex{entry.chunk};
  request.header.slot = chunk.inflight;
  request.header.record = key.record;
  request.header.key = key.index;
  request.header.operation = key.operation;
  request.header.root = key.root;
  if (key.gradients != nullptr) {
    request.header.payload_bytes = chunk.bytes;
    request.payload = {key.gradients + chunk.offset_bytes, chunk.bytes};
  }
  request.connections = {&lane.connection, 1};
  lane_key.cursor = NextReady(lane, lane_key, entry.chunk + 1);
}

void Sender::Undo(Lane& lane, std::span<EngineKey* const> keys, std::size_t taken,
                  std::size_t count) {
  for (std::size_t at = count; at > taken; --at) {
    const Entry& entry = entries_[at - 1];
    LaneKey& lane_key = lane.keys[entry.lane_key];
    if (entry.is_record) {
      lane_key.announced = entry.announced_before;
      continue;
    }
    LaneChunk& chunk = lane.chunks[entry.chunk];
    lane.landing[entry.chunk] = {};
    lane.free_slots.push_back(chunk.inflight);
    chunk.inflight = kNoSlot;
    chunk.phase = LaneChunk::Phase::kReady;
    lane_key.cursor = entry.chunk;
    QueueLaneKey(lane, keys, entry.lane_key);
  }
}

void Sender::Account(const Lane& lane, std::span<EngineKey* const> keys, std::size_t taken) {
  for (std::size_t at = 0; at < taken; ++at) {
    keys[lane.keys[entries_[at].lane_key].key]->sent_any = true;
    if (entries_[at].is_record)
      ++counters_.records_sent;
    else
      ++counters_.gradients_sent;
  }
}

}  // namespace phub::client
