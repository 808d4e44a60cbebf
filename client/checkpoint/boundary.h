// Chooses the iteration at which a job's checkpoint is taken, from the versions of its keys'
// chunks. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

struct Boundary {
  std::uint64_t iteration = 0;  // the job's; without lockstep the maximum over the keys
  bool lockstep = true;         // all chunks of all keys are within one iteration of each other
  std::vector<std::uint64_t> targets;  // [key index] in reductions
};

// versions: the answers of all daemons of the rack. before: their previous answers, or empty.
// margin: iterations ahead of the highest chunk, for a job that advances meanwhile.
//
// Keys in lockstep are all saved at one iteration of the job. Otherwise each key is saved at its
// own highest iteration, plus the margin if it has advanced since `before`. Daemons answer at
// different moments, so the keys of a fast job can look apart. They count as in lockstep if they
// can have been so at a moment between `before` and `versions`.
//
// ABORTED: ask again. The daemons do not all know the same keys yet, or keys look apart and
// `before` has no answer of this run.
absl::StatusOr<Boundary> ChooseBoundary(std::span<const v1::GetVersionsResponse> versions,
                                        std::span<const v1::GetVersionsResponse> before,
                                        std::uint64_t margin);

}  // namespace phub::client
