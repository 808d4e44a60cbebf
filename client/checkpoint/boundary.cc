#include "client/checkpoint/boundary.h"

#include <algorithm>

namespace phub::client {
namespace {

// The progress of a key, over all daemons.
struct Merged {
  bool has_chunks = false;
  std::uint64_t first_iteration = 0;
  std::uint64_t reductions_min = 0;
  std::uint64_t reductions_max = 0;
};

std::vector<Merged> Merge(std::span<const v1::GetVersionsResponse> versions) {
  std::vector<Merged> keys;
  for (const v1::GetVersionsResponse& daemon : versions) {
    keys.resize(std::max(keys.size(), static_cast<std::size_t>(daemon.keys_size())));
    for (int i = 0; i < daemon.keys_size(); ++i) {
      const v1::KeyVersions& from = daemon.keys(i);
      Merged& key = keys[static_cast<std::size_t>(i)];
      key.first_iteration = from.first_iteration();
      if (from.chunk_count() == 0) continue;
      key.reductions_min = key.has_chunks ? std::min(key.reductions_min, from.reductions_min())
                                          : from.reductions_min();
      key.reductions_max = std::max(key.reductions_max, from.reductions_max());
      key.has_chunks = true;
    }
  }
  return keys;
}

// False if there is no earlier answer, or it is from another run.
bool GoesOnFrom(std::span<const Merged> before, std::span<const Merged> now) {
  for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (before[i].reductions_max > now[i].reductions_max) return false;
  }
  return !before.empty() && before.size() <= now.size();
}

// True if at some moment between the answers `before` and `now` all chunks can have been within one
// iteration of each other.
bool CanBeInLockstep(std::span<const Merged> now, std::span<const Merged> before) {
  std::uint64_t highest = 0;          // lower bound of the highest iteration at that moment
  std::uint64_t lowest = UINT64_MAX;  // upper bound of the lowest iteration at that moment
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!now[i].has_chunks) continue;
    lowest = std::min(lowest, now[i].first_iteration + now[i].reductions_min);
    if (i < before.size() && before[i].has_chunks)
      highest = std::max(highest, before[i].first_iteration + before[i].reductions_max);
  }
  return highest <= lowest || highest - lowest <= 1;
}

}  // namespace

absl::StatusOr<Boundary> ChooseBoundary(std::span<const v1::GetVersionsResponse> versions,
                                        std::span<const v1::GetVersionsResponse> before,
                                        std::uint64_t margin) {
  for (const v1::GetVersionsResponse& daemon : versions) {
    if (daemon.keys_size() != versions.front().keys_size()) {
      return absl::AbortedError("keys are being added to the job; try again");
    }
  }
  const std::vector<Merged> keys = Merge(versions);
  const std::vector<Merged> earlier = Merge(before);
  Boundary boundary;
  for (const Merged& key : keys) {
    if (!key.has_chunks) continue;
    boundary.iteration = std::max(boundary.iteration, key.first_iteration + key.reductions_max);
  }
  boundary.lockstep = CanBeInLockstep(keys, keys);
  if (!boundary.lockstep) {
    if (!GoesOnFrom(earlier, keys))
      return absl::AbortedError("the keys are at different iterations; try again");
    boundary.lockstep = CanBeInLockstep(keys, earlier);
  }
  if (boundary.lockstep) boundary.iteration += margin;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Merged& key = keys[i];
    if (boundary.lockstep) {
      // A key that was added after the boundary has target 0.
      boundary.targets.push_back(boundary.iteration -
                                 std::min(boundary.iteration, key.first_iteration));
      continue;
    }
    const bool moves = i < earlier.size() && earlier[i].reductions_max != key.reductions_max;
    boundary.targets.push_back(key.reductions_max + (moves ? margin : 0));
    boundary.iteration =
        std::max(boundary.iteration, key.first_iteration + boundary.targets.back());
  }
  return boundary;
}

}  // namespace phub::client
