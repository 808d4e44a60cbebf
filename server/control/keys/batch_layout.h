// Cuts a batch of keys for the core loops, lays out its parameters and maps their memory. Pure
// functions but for the memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/jobs/batch_parameters.h"
#include "server/core/job_shard.h"

namespace phub::server {

// Every core's part of a batch, still without memory: every key goes to every core, perhaps without
// chunks, so that key numbers are the same everywhere. placement[key][chunk] as of PlaceKeys; keys
// that were checked, with their defaults filled in; the first gets number `first_key`.
std::vector<std::vector<KeyShardSpec>> CutForCores(
    const KeySpecs& keys, const std::vector<std::vector<BinIndex>>& placement, OwnBins own,
    std::uint32_t chunk_bytes, std::uint32_t first_key);

// `share`: keys that are all in `parts` are to lie in shared memory.
ParameterLayout LayOutParameters(const KeySpecs& keys,
                                 const std::vector<std::vector<KeyShardSpec>>& parts,
                                 std::uint32_t versions, bool share);

// Maps the memory and points the parts at it.
absl::StatusOr<BatchParameters> MakeParameters(const ParameterLayout& layout,
                                               std::uint32_t versions,
                                               std::vector<std::vector<KeyShardSpec>>& parts);

}  // namespace phub::server
