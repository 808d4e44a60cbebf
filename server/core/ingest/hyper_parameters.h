// Versions of the hyper-parameters of a key: which versions are known, and whether ranks agree on
// them.
//
// A version is announced on a lane before the first gradient that names it. A rank starts a key's
// round t+1 only after every chunk of the key has answered t, and that needs every rank's push of
// t; so at most two versions of a key are in use at once, and a ring of kHyperVersionsPerKey is
// enough. A rank that announces further ones ahead of the others is refused before it overwrites
// one in use. Core loop's thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::ingest {

struct HyperParametersVerdict {
  FaultCode fault = FaultCode::kNone;
  Rank other{};  // kHyperParametersMismatch: who announced the version first
};

// Accepts or refuses the version that `rank` announced. kHyperParametersRange: version 0, one older
// than the ring still holds, one that skips a version, or one that would overwrite a version in
// use. kHyperParametersMismatch: another rank announced other values for this version.
HyperParametersVerdict AcceptHyperParameters(const JobShard& shard, ShardKey& key,
                                             HyperVersion version, Rank rank,
                                             const wire::HyperParameters& values);

// The values of that version, or null if it is not known.
const ShardKey::HyperParameterSet* FindHyperParameters(const ShardKey& key, HyperVersion version);

}  // namespace phub::server::ingest
