#include "client/push/ready_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::client {
namespace {

std::vector<ReadyKey>& Heap(Lane& lane, std::uint32_t lane_key) {
  const LaneKey& queued = lane.keys[lane_key];
  return lane.ready[queued.level][static_cast<std::size_t>(queued.way)];
}

// Whether a gradient of that class finds a slot.
bool HasSlot(const Lane& lane, std::size_t level) {
  if (lane.free_slots.empty()) return false;
  std::size_t top = kPriorityLevels - 1;
  while (top > level && lane.keys_at[top] == 0) --top;
  if (top == level || lane.yielding_slots == 0) return true;
  std::uint32_t yielding = 0;
  for (std::size_t lower = 0; lower < top; ++lower) yielding += lane.slots_at[lower];
  return yielding < lane.yielding_slots;
}

bool IsOpen(const Lane& lane, SendWay way, std::size_t level) {
  switch (way) {
    case SendWay::kSlot: return HasSlot(lane, level);
    case SendWay::kInPlace: return true;
    case SendWay::kPull: return lane.pulls_under_way < kPullsPerLaneMax;
  }
  return false;
}

// The first key of a class that can be sent now, or null.
const ReadyKey* FirstOf(const Lane& lane, std::size_t level) {
  const ReadyKey* first = nullptr;
  for (std::size_t way = 0; way < kSendWays; ++way) {
    const std::vector<ReadyKey>& heap = lane.ready[level][way];
    if (heap.empty() || !IsOpen(lane, static_cast<SendWay>(way), level)) continue;
    if (first == nullptr || *first < heap.front()) first = &heap.front();
  }
  return first;
}

// The same of the lowest class that has one.
const ReadyKey* Lowest(const Lane& lane) {
  const ReadyKey* lowest = nullptr;
  for (std::size_t level = 0; level < kPriorityLevels && lowest == nullptr; ++level)
    lowest = FirstOf(lane, level);
  return lowest;
}

}  // namespace

void QueueLaneKey(Lane& lane, std::uint32_t lane_key) {
  LaneKey& queued = lane.keys[lane_key];
  if (queued.queued) return;
  std::vector<ReadyKey>& heap = Heap(lane, lane_key);
  PHUB_CHECK(heap.size() < heap.capacity(), "ready={}", heap.size());
  queued.queued = true;
  heap.push_back({.priority = queued.priority, .order = queued.order, .lane_key = lane_key});
  std::push_heap(heap.begin(), heap.end());
}

bool FirstLaneKey(const Lane& lane, std::uint32_t& lane_key) {
  const ReadyKey* first = nullptr;
  if (lane.overtakes >= kOvertakesMax) first = Lowest(lane);
  for (std::size_t level = kPriorityLevels; level > 0 && first == nullptr; --level)
    first = FirstOf(lane, level - 1);
  if (first != nullptr) lane_key = first->lane_key;
  return first != nullptr;
}

void NoteChoice(Lane& lane, std::uint32_t lane_key) {
  const ReadyKey* const lowest = Lowest(lane);
  const bool overtakes =
      lowest != nullptr && lane.keys[lowest->lane_key].level < lane.keys[lane_key].level;
  lane.overtakes = overtakes ? lane.overtakes + 1 : 0;
}

void PopLaneKey(Lane& lane, std::uint32_t lane_key) {
  std::vector<ReadyKey>& heap = Heap(lane, lane_key);
  PHUB_CHECK(!heap.empty() && heap.front().lane_key == lane_key, "lane_key={}", lane_key);
  std::pop_heap(heap.begin(), heap.end());
  heap.pop_back();
  lane.keys[lane_key].queued = false;
}

void RemoveLaneKey(Lane& lane, std::uint32_t lane_key) {
  if (!lane.keys[lane_key].queued) return;
  std::vector<ReadyKey>& heap = Heap(lane, lane_key);
  const auto found = std::find_if(heap.begin(), heap.end(), [lane_key](const ReadyKey& ready) {
    return ready.lane_key == lane_key;
  });
  PHUB_CHECK(found != heap.end(), "lane_key={}", lane_key);
  *found = heap.back();
  heap.pop_back();
  lane.keys[lane_key].queued = false;
  std::make_heap(heap.begin(), heap.end());
}

}  // namespace phub::client
