// At which iteration a job's state is saved: chosen from where its keys' chunks are. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

struct Boundary {
  std::uint64_t iteration =
      0;                 // of the job; the highest over the keys, if they are not in lockstep
  bool lockstep = true;  // all chunks of all keys are within one iteration of each other
  std::vector<std::uint64_t> targets;  // [key index] in reductions
};

// versions: of every daemon of the rack. margin: how far ahead of the highest chunk, for a job that
// moved on while it was asked. Keys in lockstep are all saved at one iteration of the job. Else
// each is saved at its own highest, and the margin is for those that moved since `before` (another
// answer of the same daemons; empty: none). Daemons do not answer at one moment, so that a fast job
// looks as if its keys were apart: they are in lockstep if they can have been between the two
// answers. ABORTED, ask again: the daemons do not know the same keys yet, or keys look apart and
// there is no answer of this run before.
absl::StatusOr<Boundary> ChooseBoundary(std::span<const v1::GetVersionsResponse> versions,
                                        std::span<const v1::GetVersionsResponse> before,
                                        std::uint64_t margin);

}  // namespace phub::client
