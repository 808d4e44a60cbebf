// Recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 2005). In step s of the reduce phase, rank r exchanges
// with rank r xor 2^s: each sends the half of its remaining data whose homes are on the other side.
// For one home h this is a binomial tree: rank r keeps its partial sum until the step of the lowest
// bit in which it differs from h, and then sends it to the rank with that bit flipped. The gather
// phase is the reverse. Distances grow 1, 2, 4... while data shrinks D/2, D/4...: most data goes to
// the nearest ranks. The number of members must be a power of two.
#include <bit>

#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

absl::Status HalvingDoublingApplies(const Topology& topology) {
  const std::size_t count = topology.members().size();
  if (!std::has_single_bit(count))
    return absl::FailedPreconditionError(
        fmt::format("the number of members, {}, is not a power of two", count));
  return CheckEdges(topology);
}

absl::StatusOr<Forest> PlanHalvingDoubling(const Topology& topology, const PlannerOptions&) {
  return HalvingDoublingForest(topology, "halving-doubling", NaturalOrder(topology));
}

}  // namespace

Forest HalvingDoublingForest(const Topology& topology, std::string_view planner,
                             std::vector<NodeIndex> order) {
  const std::size_t count = order.size();
  const auto steps = static_cast<std::uint32_t>(std::countr_zero(count));
  RankForest forest(topology, planner, std::move(order), static_cast<std::int64_t>(count));
  for (std::size_t home = 0; home < count; ++home) {
    forest.AddTree(home, 1);
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t rank = home ^ i;  // differs from the home in the set bits of i
      const auto step = static_cast<std::uint32_t>(std::countr_zero(i));
      forest.Mirror(rank, rank ^ (std::size_t{1} << step), step, steps);
    }
  }
  return forest.Take();
}

Planner HalvingDoublingPlanner() {
  return {"halving-doubling", "recursive halving and doubling; needs a power of two members",
          HalvingDoublingApplies, PlanHalvingDoubling};
}

}  // namespace phub::plan
