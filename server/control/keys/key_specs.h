// Checks the keys that a worker adds and converts them for the core loops. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// Checks a batch by itself and against the job: names, counts, types, operations, optimizers and
// their hyper-parameters, limits.
absl::Status CheckKeys(const Job& job, const KeySpecs& keys);

// Returns the keys with defaults filled in, such as wire types.
KeySpecs FillInDefaults(const KeySpecs& keys);

// Describes the first difference between a batch from its first rank and from `rank`, with the
// names of both. Empty if they are equal. `keys` have their defaults filled in.
std::string DifferenceInKeys(const Job& job, std::uint32_t batch, const KeySpecs& keys, Rank rank);

// The following functions need a checked key with its defaults filled in.
std::uint64_t KeyBytes(const v1::KeySpec& key);           // in the type of the key
std::uint64_t KeyParameterBytes(const v1::KeySpec& key);  // in the type that workers receive
// The fields that are the same for every core loop: all except chunks and memory.
KeyShardSpec ShardSpecOf(const v1::KeySpec& key, KeyIndex index);

}  // namespace phub::server
