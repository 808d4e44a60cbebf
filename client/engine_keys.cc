// Adding and removing keys. Chunks have the daemon's numbers. Numbers of groups that this rank is
// not a member of, or that were removed, are holes: chunks without a lane key, which later keys
// may fill. The places of removed keys are used again, too.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "client/engine_impl.h"
#include "common/base/group_keys.h"

namespace phub::client {

namespace {

// The lane key that a chunk of a key needs.
LaneKey LaneKeyFor(const KeyPlan& plan, const ChunkPlace& place, std::uint32_t position) {
  return {.key = position,
          .first = place.chunk.value,
          .priority = plan.priority,
          .level = plan.level,
          .sends = place.sender == kEveryRank || place.sender == plan.rank,
          .receives = place.receiver == kEveryRank || place.receiver == plan.rank};
}

// Whether an aggregator may sum reductions of the chunk, as the daemon sees it (shard_sums.cc).
// Keys of groups are collective.
bool IsStreamed(const KeyPlan& plan, const ChunkPlace& place) {
  return !plan.collective && !plan.pooled && plan.encoding.none() && place.sender == kEveryRank &&
         place.receiver == kEveryRank && numeric::IsFloating(plan.type) &&
         numeric::IsFloating(plan.gradient_type);
}

// Whether the next chunk of the same key on a lane may be in the lane key of the last one.
bool Continues(const LaneKey& last, const LaneKey& next) {
  return last.sends == next.sends && last.receives == next.receives;
}

// The place of a free entry, or of a new one at the end.
template <typename T>
std::uint32_t TakePlace(std::vector<T>& all, std::vector<std::uint32_t>& free) {
  if (free.empty()) {
    all.emplace_back();
    return static_cast<std::uint32_t>(all.size() - 1);
  }
  const std::uint32_t place = free.back();
  free.pop_back();
  return place;
}

// Drops free entries at the end.
template <typename T, typename IsFree>
void Shrink(std::vector<T>& all, std::vector<std::uint32_t>& free, IsFree&& is_free) {
  while (!all.empty() && is_free(all.back())) all.pop_back();
  std::erase_if(free, [&](std::uint32_t place) { return place >= all.size(); });
}

}  // namespace

EngineKey& Engine::Impl::key(KeyIndex index) {
  const std::uint32_t* const position = FindPosition(index);
  PHUB_CHECK(position != nullptr && *position != kNoPosition, "key={}", index.value);
  return *keys[*position];
}

std::uint32_t* Engine::Impl::FindPosition(KeyIndex index) {
  const bool in_group = index.value >= kGroupKeysFirst;
  std::vector<std::uint32_t>& positions = in_group ? group_positions : job_positions;
  const std::uint32_t number = in_group ? index.value - kGroupKeysFirst : index.value;
  return number < positions.size() ? &positions[number] : nullptr;
}

void Engine::Impl::AddKeys(const KeyBatch& batch) {
  std::vector<std::size_t> chunk_ends(lanes.size(), 0);
  std::vector<std::size_t> keys_added(lanes.size(), 0);
  for (const KeyPlan& plan : batch.keys) {
    std::vector<std::optional<LaneKey>> last(lanes.size());
    for (const ChunkPlace& place : plan.layout.chunks) {
      PHUB_CHECK(place.lane < lanes.size(), "lane={}", place.lane);
      std::size_t& end = chunk_ends[place.lane];
      end = std::max<std::size_t>(end, place.chunk.value + 1);
      const LaneKey next = LaneKeyFor(plan, place, /*position=*/0);
      if (!last[place.lane] || !Continues(*last[place.lane], next)) ++keys_added[place.lane];
      last[place.lane] = next;
    }
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) GrowLane(lanes[l], chunk_ends[l], keys_added[l]);
  for (const KeyPlan& plan : batch.keys) AddKey(plan);
  for (const auto& each : sums) each->AddChunks();
  gate.AddKeys(keys);
  decider.AddKeys(batch);
}

void Engine::Impl::GrowLane(Lane& lane, std::size_t chunk_end, std::size_t keys_added) {
  lane.keys.reserve(lane.keys.size() + keys_added);
  if (chunk_end <= lane.chunks.size()) return;
  lane.chunks.resize(chunk_end);
  ResizeLanding(lane);
}

// The connection may be receiving, so it must switch to the new landing table.
void Engine::Impl::ResizeLanding(Lane& lane) {
  std::vector<transport::LandingSlot> landing(lane.landing);
  landing.resize(lane.chunks.size());
  lane.landing.swap(landing);
  if (lane.state == Lane::State::kOpen)
    transports[lane.transport_index]->SetLanding(lane.connection, lane.landing);
}

void Engine::Impl::AddKey(const KeyPlan& plan) {
  const KeyIndex index = plan.layout.key;
  const std::uint32_t position = TakePlace(owned_keys, free_positions);
  keys.resize(owned_keys.size());
  std::vector<std::uint32_t>& positions =
      index.value >= kGroupKeysFirst ? group_positions : job_positions;
  const std::uint32_t number = index.value % kGroupKeysFirst;
  if (positions.size() <= number) positions.resize(number + 1, kNoPosition);
  PHUB_CHECK(positions[number] == kNoPosition, "key={}", index.value);
  positions[number] = position;

  auto added = std::make_unique<EngineKey>();
  added->index = index;
  added->position = position;
  added->collective = plan.collective;
  added->pooled = plan.pooled;
  added->gradient_type = plan.gradient_type;
  added->parameter_type = plan.parameter_type;
  added->encoding = plan.encoding;
  added->chunk_elements = plan.layout.chunks.front().element_count;
  added->first_iteration = plan.first_iteration;
  added->listener = plan.listener;
  added->chunk_count = static_cast<std::uint32_t>(plan.layout.chunks.size());
  added->announced_values = added->previous_values = added->wanted_values = plan.hyper_parameters;
  std::vector<std::uint32_t> lane_key_of(lanes.size(), UINT32_MAX);
  for (const ChunkPlace& place : plan.layout.chunks) {
    Lane& lane = lanes[place.lane];
    const LaneKey next = LaneKeyFor(plan, place, position);
    std::uint32_t& lane_key = lane_key_of[place.lane];
    if (lane_key == UINT32_MAX || !Continues(lane.keys[lane_key], next)) {
      lane_key = TakePlace(lane.keys, lane.free_keys);
      added->parts.push_back({.lane = place.lane, .lane_key = lane_key});
      lane.keys[lane_key] = next;
      ++lane.keys_at[next.level];
      // Room for all keys of its class. Others, which most jobs do not use, need none.
      for (std::vector<ReadyKey>& heap : lane.ready[next.level]) heap.reserve(lane.keys.capacity());
    }
    PHUB_CHECK(place.chunk.value == lane.keys[lane_key].end(), "chunk={}", place.chunk.value);
    ++lane.keys[lane_key].count;
    LaneChunk& chunk = lane.chunks[place.chunk.value];
    PHUB_CHECK(chunk.is_hole(), "chunk={}", place.chunk.value);
    chunk = {.lane_key = lane_key,
             .element_count = place.element_count,
             .sent_offset = place.sent_offset,
             .received_offset = place.received_offset,
             .sender = place.sender,
             .is_streamed = IsStreamed(plan, place)};
  }
  keys[position] = added.get();
  owned_keys[position] = std::move(added);
}

void Engine::Impl::RemoveKeys(const Command& command) {
  std::vector<std::uint32_t> removed;  // positions
  if (command.batch != nullptr) {
    for (const KeyPlan& plan : command.batch->keys)
      removed.push_back(key(plan.layout.key).position);
  } else {
    for (std::uint32_t k = command.key.value; k < job_positions.size(); ++k)
      removed.push_back(key(KeyIndex{k}).position);
  }
  std::vector<RoundListener*> listeners;
  for (const std::uint32_t position : removed) {
    listeners.push_back(keys[position]->listener);
    RemoveKey(*keys[position]);
  }
  const auto is_null = [](const auto& each) { return each == nullptr; };
  Shrink(owned_keys, free_positions, is_null);
  keys.resize(owned_keys.size());
  std::vector<std::uint32_t> no_list;
  const auto has_none = [](std::uint32_t position) { return position == kNoPosition; };
  Shrink(job_positions, no_list, has_none);
  Shrink(group_positions, no_list, has_none);
  for (Lane& lane : lanes) ShrinkLane(lane);
  for (RoundListener* const each : listeners) each->OnRemoved();
}

void Engine::Impl::RemoveKey(EngineKey& removed) {
  PHUB_CHECK(!removed.active && removed.collective, "key={}", removed.index.value);
  for (const EngineKey::Part& part : removed.parts) {
    Lane& lane = lanes[part.lane];
    LaneKey& lane_key = lane.keys[part.lane_key];
    PHUB_CHECK(!lane_key.queued, "key={}", removed.index.value);
    for (std::uint32_t c = lane_key.first; c < lane_key.end(); ++c) {
      lane.chunks[c] = {};
      // A later chunk may have the same number and ticket, and must be copied.
      for (Lane::SlotCopy& copy : lane.copies)
        if (copy.chunk.value == c) copy = {};
    }
    --lane.keys_at[lane_key.level];
    lane_key = {};
    lane.free_keys.push_back(part.lane_key);
  }
  *FindPosition(removed.index) = kNoPosition;
  free_positions.push_back(removed.position);
  const std::uint32_t position = removed.position;
  keys[position] = nullptr;
  owned_keys[position] = nullptr;
}

void Engine::Impl::ShrinkLane(Lane& lane) {
  Shrink(lane.keys, lane.free_keys, [](const LaneKey& each) { return each.count == 0; });
  const std::size_t before = lane.chunks.size();
  while (!lane.chunks.empty() && lane.chunks.back().is_hole()) lane.chunks.pop_back();
  if (lane.chunks.size() == before) return;
  ResizeLanding(lane);
  if (lane.sums != nullptr) lane.sums->RemoveChunks();
}

}  // namespace phub::client
