#include "server/core/ingest/hyper_parameters.h"

#include <algorithm>
#include <cstring>

namespace phub::server::ingest {
namespace {

HyperVersion Newest(const ShardKey& key) {
  HyperVersion newest{};
  for (const ShardKey::HyperParameterSet& set : key.hyper_parameters)
    newest = std::max(newest, set.version);
  return newest;
}

// Compares bits instead of values, because -0 and 0 affect a sum differently.
bool SameBits(const wire::HyperParameters& a, const wire::HyperParameters& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Some chunk of the key has a round that began with this version and is not finished.
bool IsInUse(const JobShard& shard, const ShardKey& key, HyperVersion version) {
  for (std::uint32_t i = 0; i < key.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[key.first_chunk.value + i];
    if (chunk.arrived_count() > 0 && chunk.hyper_version == version) return true;
  }
  return false;
}

}  // namespace

HyperParametersVerdict AcceptHyperParameters(const JobShard& shard, ShardKey& key,
                                             HyperVersion version, Rank rank,
                                             const wire::HyperParameters& values) {
  const HyperVersion newest = Newest(key);
  if (version.value == 0 || version.value > newest.value + 1 ||
      version.value + kHyperVersionsPerKey <= newest.value) {
    return {FaultCode::kHyperParametersRange, rank};
  }
  ShardKey::HyperParameterSet& set = key.hyper_parameters[version.value % kHyperVersionsPerKey];
  if (set.version == version) {
    if (SameBits(set.values, values)) return {};
    return {FaultCode::kHyperParametersMismatch, set.announced_by};
  }
  if (set.version.value != 0 && IsInUse(shard, key, set.version))
    return {FaultCode::kHyperParametersRange, rank};
  set = {version, rank, values};
  return {};
}

const ShardKey::HyperParameterSet* FindHyperParameters(const ShardKey& key, HyperVersion version) {
  const ShardKey::HyperParameterSet& set =
      key.hyper_parameters[version.value % kHyperVersionsPerKey];
  return version.value != 0 && set.version == version ? &set : nullptr;
}

}  // namespace phub::server::ingest
