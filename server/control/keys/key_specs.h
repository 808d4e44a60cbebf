// Checks the keys that a worker adds, and says what they mean to the core loops. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// Whether the batch is good by itself and fits the job: names, counts, types, operations,
// optimizers and their hyper-parameters, limits.
absl::Status CheckKeys(const Job& job, const KeySpecs& keys);

// The same keys with what they leave open filled in: wire types, for one.
KeySpecs FillInDefaults(const KeySpecs& keys);

// Says exactly what differs between a batch as its first rank sent it and as `rank` did, naming
// both; empty if nothing does. `keys`: with defaults filled in.
std::string DifferenceInKeys(const Job& job, std::uint32_t batch, const KeySpecs& keys, Rank rank);

// Of a key that was checked, with its defaults filled in.
std::uint64_t KeyBytes(const v1::KeySpec& key);           // in the key's own type
std::uint64_t KeyParameterBytes(const v1::KeySpec& key);  // in the type that workers get
// What every core loop's part of it has in common: all but chunks and memory.
KeyShardSpec ShardSpecOf(const v1::KeySpec& key, KeyIndex index);

}  // namespace phub::server
