#include "client/push/ready_queue.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::client {
namespace {

// std:: heaps put the greatest first: "less" means "sent later".
auto SentLater(const Lane& lane, std::span<const EngineKey* const> keys) {
  return [&lane, keys](std::uint32_t left, std::uint32_t right) {
    const EngineKey& a = *keys[lane.keys[left].key];
    const EngineKey& b = *keys[lane.keys[right].key];
    if (a.priority != b.priority) return a.priority < b.priority;
    return a.index > b.index;
  };
}

}  // namespace

void QueueLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key) {
  if (lane.keys[lane_key].queued) return;
  PHUB_CHECK(lane.ready.size() < lane.ready.capacity(), "ready={}", lane.ready.size());
  lane.keys[lane_key].queued = true;
  lane.ready.push_back(lane_key);
  std::push_heap(lane.ready.begin(), lane.ready.end(), SentLater(lane, keys));
}

void PopLaneKey(Lane& lane, std::span<const EngineKey* const> keys) {
  PHUB_CHECK(!lane.ready.empty());
  std::pop_heap(lane.ready.begin(), lane.ready.end(), SentLater(lane, keys));
  lane.keys[lane.ready.back()].queued = false;
  lane.ready.pop_back();
}

void RemoveLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key) {
  if (!lane.keys[lane_key].queued) return;
  const auto found = std::find(lane.ready.begin(), lane.ready.end(), lane_key);
  PHUB_CHECK(found != lane.ready.end(), "lane_key={}", lane_key);
  *found = lane.ready.back();
  lane.ready.pop_back();
  lane.keys[lane_key].queued = false;
  std::make_heap(lane.ready.begin(), lane.ready.end(), SentLater(lane, keys));
}

}  // namespace phub::client
