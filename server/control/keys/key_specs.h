// Checks the keys that a worker adds and converts them for the core loops. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/chunk_map.h"
#include "server/control/jobs/job.h"
#include "server/control/keys/key_build.h"

namespace phub::server {

inline constexpr std::uint64_t kElementBytesMax = 8;  // the largest element type

// Checks a batch by itself and against the keys of its job: names, counts, types, operations,
// optimizers and their hyper-parameters, limits.
absl::Status CheckKeys(const KeyBuild& build, const KeySpecs& keys);

// Returns the keys with defaults filled in, such as wire types.
KeySpecs FillInDefaults(const KeySpecs& keys);

// The first difference between a batch from its first rank and from another rank.
struct KeyDifference {
  bool found = false;
  std::size_t key = 0;  // in the batch
  // Two phrases about the key; empty: the batches have different numbers of keys.
  std::string first;
  std::string other;
  std::size_t count = 0;  // keys of the other rank
  std::string extra;      // different numbers: the name of the first key that only one has
};
// `keys` have their defaults filled in. Any thread: reads neither first iterations nor the job.
KeyDifference CompareKeys(const KeyList& first, const KeySpecs& keys);
// Describes it with the names of both ranks.
std::string Describe(const KeyDifference& difference, const Job& job, const BatchRecord& record,
                     std::uint32_t batch, Rank rank);

// The following functions need a checked key with its defaults filled in.
std::uint64_t KeyBytes(const v1::KeySpec& key);  // in the type of the key
KeyMovement MovementOf(const v1::KeySpec& key);
// The key's parts in a job with that many ranks in this rack.
KeyParts PartsOf(const v1::KeySpec& key, std::uint32_t ranks);
// How the key is cut in a job with that many ranks in this rack.
ChunkMap ChunksOf(const v1::KeySpec& key, std::uint32_t ranks, std::uint32_t chunk_bytes);
std::uint64_t KeyParameterBytes(const v1::KeySpec& key);  // in the type that workers receive
// The fields that are the same for every core loop: all except chunks and memory.
KeyShardSpec ShardSpecOf(const v1::KeySpec& key, KeyIndex index);

}  // namespace phub::server
