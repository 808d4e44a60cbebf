// Tracks the job's iteration: the minimum over its keys, counting reductions only. Collective keys
// do not count. With `restart` it delays pushes: a reduction of an iteration is sent only after
// every key has completed the previous one. A restarted worker then finds all keys at the same
// iteration or the next.
//
// Runs on the engine's thread, except iteration(). Only AddKeys() allocates.
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

  // Any thread. 0 without keys, or with collective keys only.
  std::uint64_t iteration() const { return iteration_.load(std::memory_order_acquire); }

  // `keys`: all keys of the job, including the new ones.
  void AddKeys(std::span<EngineKey* const> keys);
  // True if the round must wait: the gate holds it, and the caller must not start it.
  [[nodiscard]] bool Hold(EngineKey& key);
  // Removes a held round that is withdrawn.
  void Withdraw(EngineKey& key);
  // The job iteration of `key` has changed from `before`.
  void Advance(std::span<EngineKey* const> keys, const EngineKey& key, std::uint64_t before);
  // Returns a held round that may start now, or null.
  EngineKey* Release();

 private:
  void Count(std::span<EngineKey* const> keys);

  const bool restart_;
  std::atomic<std::uint64_t> iteration_{0};
  std::size_t least_count_ = 0;  // keys that are at iteration_
  std::vector<EngineKey*> held_;
};

}  // namespace phub::client
