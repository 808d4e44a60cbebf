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

// Bits, not values: -0 and 0 differ in what they do to a sum.
bool SameBits(const wire::HyperParameters& a, const wire::HyperParameters& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

HyperParametersVerdict AcceptHyperParameters(ShardKey& key, HyperVersion version, Rank rank,
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
  set = {version, rank, values};
  return {};
}

const ShardKey::HyperParameterSet* FindHyperParameters(const ShardKey& key, HyperVersion version) {
  const ShardKey::HyperParameterSet& set =
      key.hyper_parameters[version.value % kHyperVersionsPerKey];
  return version.value != 0 && set.version == version ? &set : nullptr;
}

}  // namespace phub::server::ingest
