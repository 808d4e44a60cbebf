#include "client/state_transfer/boundary.h"

#include <algorithm>

namespace phub::client {
namespace {

// A key over all daemons.
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

}  // namespace

absl::StatusOr<Boundary> ChooseBoundary(std::span<const v1::GetVersionsResponse> versions,
                                        std::span<const v1::GetVersionsResponse> before,
                                        std::uint64_t margin) {
  for (const v1::GetVersionsResponse& daemon : versions) {
    if (daemon.keys_size() != versions.front().keys_size()) {
      return absl::AbortedError("keys are being added to the job");
    }
  }
  const std::vector<Merged> keys = Merge(versions);
  const std::vector<Merged> earlier = Merge(before);
  Boundary boundary;
  std::uint64_t lowest = UINT64_MAX;
  for (const Merged& key : keys) {
    if (!key.has_chunks) continue;
    boundary.iteration = std::max(boundary.iteration, key.first_iteration + key.reductions_max);
    lowest = std::min(lowest, key.first_iteration + key.reductions_min);
  }
  boundary.lockstep = lowest == UINT64_MAX || boundary.iteration - lowest <= 1;
  if (boundary.lockstep) boundary.iteration += margin;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Merged& key = keys[i];
    if (boundary.lockstep) {
      // A key that is younger than the boundary has no rounds before it.
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
