// How far the job is: the least of its keys' iterations, counting reductions only. With restart it
// holds back pushes: no reduction of an iteration leaves before every key has completed the one
// before it, so that a worker that starts anew finds all keys at one iteration or the next.
//
// Belongs to the engine's thread, but for iteration(). Nothing here allocates, except AddKeys.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "client/lane.h"

namespace phub::client {

class IterationGate {
 public:
  explicit IterationGate(bool restart) : restart_(restart) {}

  // Any thread. 0 without keys.
  std::uint64_t iteration() const { return iteration_.load(std::memory_order_acquire); }

  // `keys` are all of the job's, some of them new.
  void AddKeys(std::span<EngineKey* const> keys);
  // Holds a round back, if it is to wait: then it is not to be started. True if so.
  [[nodiscard]] bool Hold(EngineKey& key);
  // Forgets a round that was held and is withdrawn.
  void Withdraw(EngineKey& key);
  // A key was at `before` and is somewhere else now.
  void Advance(std::span<EngineKey* const> keys, const EngineKey& key, std::uint64_t before);
  // A round that was held and may start now, or null.
  EngineKey* Release();

 private:
  void Count(std::span<EngineKey* const> keys);

  const bool restart_;
  std::atomic<std::uint64_t> iteration_{0};
  std::size_t least_count_ = 0;  // keys that are at iteration_
  std::vector<EngineKey*> held_;
};

}  // namespace phub::client
