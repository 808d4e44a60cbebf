// Splits a batch of keys among the core loops, lays out its parameters and maps their memory. Only
// MakeParameters has side effects.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/jobs/batch_parameters.h"
#include "server/core/job_shard.h"

namespace phub::server {

// Returns the part of a batch for every core, still without memory. Every core gets every key, if
// necessary without chunks, so that key numbers are the same on all cores. `keys` are checked and
// have their defaults filled in; the first one gets number `first_key`. placement[key][chunk] comes
// from PlaceKeys; `ranks` are those of this rack.
std::vector<std::vector<KeyShardSpec>> CutForCores(
    const KeySpecs& keys, const std::vector<std::vector<BinIndex>>& placement, OwnBins own,
    std::uint32_t ranks, std::uint32_t chunk_bytes, std::uint32_t first_key);

// If `share` is set, keys whose chunks are all in `parts` are placed in shared memory.
ParameterLayout LayOutParameters(const KeySpecs& keys,
                                 const std::vector<std::vector<KeyShardSpec>>& parts,
                                 std::uint32_t versions, bool share);

// Maps the memory and sets the pointers of the parts. `hook` is for shared memory.
absl::StatusOr<BatchParameters> MakeParameters(const ParameterLayout& layout,
                                               std::uint32_t versions,
                                               std::vector<std::vector<KeyShardSpec>>& parts,
                                               const SharedMemory::ReleaseHook& hook);

}  // namespace phub::server
