// Checks the keys that a worker adds, and cuts them for the core loops. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "server/control/job.h"

namespace phub::server {

using KeySpecs = google::protobuf::RepeatedPtrField<v1::KeySpec>;

// Whether the batch is good by itself and fits the job: names, counts, types, limits. `core_count`
// bounds the number of chunks.
absl::Status CheckKeys(const Job& job, const KeySpecs& keys, std::size_t core_count);

// Says exactly what differs between a batch as its first rank sent it and as `rank` did, naming
// both; empty if nothing does.
std::string DifferenceInKeys(const Job& job, std::uint32_t batch, const KeySpecs& keys, Rank rank);

std::uint64_t KeyBytes(const v1::KeySpec& key);

// Every core's part of a batch: every key goes to every core, perhaps without chunks, so that key
// numbers are the same everywhere. placement[key][chunk] as of PlaceKeys.
std::vector<std::vector<KeyShardSpec>> CutForCores(
    const Job& job, const KeySpecs& keys, const std::vector<std::vector<CoreIndex>>& placement,
    std::size_t core_count);

}  // namespace phub::server
