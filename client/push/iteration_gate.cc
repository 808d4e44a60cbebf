#include "client/push/iteration_gate.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::client {

void IterationGate::Count(std::span<EngineKey* const> keys) {
  std::uint64_t least = UINT64_MAX;
  std::size_t count = 0;
  for (const EngineKey* key : keys) {
    if (key == nullptr || key->collective || key->job_iteration() > least) continue;
    if (key->job_iteration() < least) count = 0;
    least = key->job_iteration();
    ++count;
  }
  least_count_ = count;
  iteration_.store(count == 0 ? 0 : least, std::memory_order_release);
}

void IterationGate::AddKeys(std::span<EngineKey* const> keys) {
  held_.reserve(keys.size());
  Count(keys);
}

bool IterationGate::Hold(EngineKey& key) {
  if (!restart_ || key.collective || key.pulling || !wire::IsIteration(key.operation)) return false;
  if (key.job_iteration() <= iteration_.load(std::memory_order_relaxed)) return false;
  PHUB_CHECK(held_.size() < held_.capacity(), "held={}", held_.size());
  key.held = true;
  held_.push_back(&key);
  return true;
}

void IterationGate::Withdraw(EngineKey& key) {
  if (!key.held) return;
  key.held = false;
  std::erase(held_, &key);
}

// Counts all keys only after the last key at the minimum has advanced: once per iteration if all
// keys advance together.
void IterationGate::Advance(std::span<EngineKey* const> keys, const EngineKey& key,
                            std::uint64_t before) {
  if (key.collective) return;
  const std::uint64_t least = iteration_.load(std::memory_order_relaxed);
  const std::uint64_t now = key.job_iteration();
  if (now == before) return;
  if (now < least || (before == least && least_count_ == 1)) return Count(keys);
  if (before == least) --least_count_;
  if (now == least) ++least_count_;
}

EngineKey* IterationGate::Release() {
  const std::uint64_t least = iteration_.load(std::memory_order_relaxed);
  const auto found = std::find_if(held_.begin(), held_.end(), [least](const EngineKey* key) {
    return key->job_iteration() <= least;
  });
  if (found == held_.end()) return nullptr;
  EngineKey* const key = *found;
  *found = held_.back();
  held_.pop_back();
  key->held = false;
  return key;
}

}  // namespace phub::client
