// Simulates several plans that exchange at the same time over one topology. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct SizedPlan {
  const Forest* forest = nullptr;
  std::int64_t bytes = 0;  // of its data, at least 1
};

// When each of the plans has all its results, if all of them start at once: seconds, in the order
// of `plans`. pieces: for every plan; fewer if there are too many transfers. InvalidArgument: the
// plans have more than kSizeBytesMax bytes together, or too many transfers. REQUIRES: Verify()
// accepted each plan on this topology; at least one.
absl::StatusOr<std::vector<double>> SimulateTogether(const Topology& topology,
                                                     std::span<const SizedPlan> plans,
                                                     std::uint32_t pieces);

}  // namespace phub::plan
