#include "client/push/ready_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::client {
namespace {

// std:: heaps have the greatest element first, so "less" means "sent later".
auto SentLater(const Lane& lane, std::span<const EngineKey* const> keys) {
  return [&lane, keys](std::uint32_t left, std::uint32_t right) {
    const EngineKey& a = *keys[lane.keys[left].key];
    const EngineKey& b = *keys[lane.keys[right].key];
    if (a.priority != b.priority) return a.priority < b.priority;
    return a.index > b.index;
  };
}

std::vector<std::uint32_t>& Heap(Lane& lane, std::uint32_t lane_key) {
  return lane.ready[static_cast<std::size_t>(lane.keys[lane_key].way)];
}

bool IsOpen(const Lane& lane, SendWay way) {
  switch (way) {
    case SendWay::kSlot: return !lane.free_slots.empty();
    case SendWay::kInPlace: return true;
    case SendWay::kPull: return lane.pulls_under_way < kPullsPerLaneMax;
  }
  return false;
}

}  // namespace

void QueueLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key) {
  if (lane.keys[lane_key].queued) return;
  std::vector<std::uint32_t>& heap = Heap(lane, lane_key);
  PHUB_CHECK(heap.size() < heap.capacity(), "ready={}", heap.size());
  lane.keys[lane_key].queued = true;
  heap.push_back(lane_key);
  std::push_heap(heap.begin(), heap.end(), SentLater(lane, keys));
}

bool FirstLaneKey(const Lane& lane, std::span<const EngineKey* const> keys,
                  std::uint32_t& lane_key) {
  const auto sent_later = SentLater(lane, keys);
  bool found = false;
  for (std::size_t way = 0; way < kSendWays; ++way) {
    const std::vector<std::uint32_t>& heap = lane.ready[way];
    if (heap.empty() || !IsOpen(lane, static_cast<SendWay>(way))) continue;
    if (found && sent_later(heap.front(), lane_key)) continue;
    lane_key = heap.front();
    found = true;
  }
  return found;
}

void PopLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key) {
  std::vector<std::uint32_t>& heap = Heap(lane, lane_key);
  PHUB_CHECK(!heap.empty() && heap.front() == lane_key, "lane_key={}", lane_key);
  std::pop_heap(heap.begin(), heap.end(), SentLater(lane, keys));
  heap.pop_back();
  lane.keys[lane_key].queued = false;
}

void RemoveLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key) {
  if (!lane.keys[lane_key].queued) return;
  std::vector<std::uint32_t>& heap = Heap(lane, lane_key);
  const auto found = std::find(heap.begin(), heap.end(), lane_key);
  PHUB_CHECK(found != heap.end(), "lane_key={}", lane_key);
  *found = heap.back();
  heap.pop_back();
  lane.keys[lane_key].queued = false;
  std::make_heap(heap.begin(), heap.end(), SentLater(lane, keys));
}

}  // namespace phub::client
