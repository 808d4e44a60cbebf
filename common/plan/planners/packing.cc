// Optimal spanning-tree packing (Zhao et al., "ForestColl: Throughput-Optimal Collective
// Communications on Heterogeneous Network Fabrics", 2024), in whole numbers throughout. If only
// bandwidth counts, no exchange made of reduce-scatter and all-gather is faster.
//
//  1. The bound (common/plan/bound.h) says that an all-gather takes y = p/q chunk times. Capacities
//     are multiplied by U = p/g, where g divides q and every capacity, and every member becomes the
//     root of k = q/g trees: then k trees from every member together just fill the worst cut.
//  2. Plain switches cannot be vertices of a tree. They are replaced by direct edges between their
//     neighbours, as long as the flow to every member stays (planners/switch_removal.h).
//  3. k trees from every member are packed into what is left, edge by edge; before each edge a flow
//     says for how many copies of the tree it can be taken without making the rest impossible
//     (Edmonds 1973; with copies, Berczi and Frank 2010; planners/tree_packing.h). Our own choice
//     is to take the edge nearest to the root that is possible, which keeps the trees shallow.
//  4. Every edge knows the physical path it stands for, so nothing has to be mapped back.
//
// A tree of one member carries 1/(N*k) of the data per copy. The trees are deep where members have
// one link each, so the packing is for large sizes, cut into many pieces; the chooser decides.
#include <numeric>
#include <utility>

#include "common/plan/bound.h"
#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/planner.h"
#include "common/plan/planners/switch_removal.h"
#include "common/plan/planners/tree_packing.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// The flows that step 2 and 3 ask for grow with the cube of the members and more: at these limits
// the search takes some ten to twenty seconds.
constexpr std::size_t kPackedMembersMax = 256;
constexpr std::size_t kPackedMembersBehindSwitchesMax = 128;
constexpr std::size_t kPackedNodesMax = 256;

absl::Status PackingApplies(const Topology& topology) {
  const bool has_switches = topology.nodes().size() > topology.members().size();
  const std::size_t members_max =
      has_switches ? kPackedMembersBehindSwitchesMax : kPackedMembersMax;
  if (topology.members().size() > members_max || topology.nodes().size() > kPackedNodesMax)
    return absl::FailedPreconditionError(
        fmt::format("the planner supports at most {} members{} and {} nodes", members_max,
                    has_switches ? " behind switches" : "", kPackedNodesMax));
  for (std::uint32_t i = 0; i < topology.nodes().size(); ++i) {
    if (topology.IsMember(NodeIndex{i})) continue;
    std::int64_t balance = 0;
    for (const LinkIndex link : topology.InLinks(NodeIndex{i}))
      balance += topology.link(link).capacity;
    for (const LinkIndex link : topology.OutLinks(NodeIndex{i}))
      balance -= topology.link(link).capacity;
    if (balance != 0)
      return absl::FailedPreconditionError(fmt::format(
          "the bandwidths into and out of switch {} differ", topology.node(NodeIndex{i}).name));
  }
  return absl::OkStatus();
}

absl::StatusOr<OutForest> GrowPacking(const Topology& topology, const PlannerOptions& options) {
  const Rational bound = GatherBound(topology).chunk_times;
  // In units of capacity instead of unit links.
  const auto y =
      Rational::Make(bound.numerator(), Wide{bound.denominator()} * topology.unit_capacity());
  if (!y) return absl::ResourceExhaustedError("the bound exceeds 63 bits: round the bandwidths");
  std::int64_t divisor = y->denominator();
  for (const Link& link : topology.links()) divisor = std::gcd(divisor, link.capacity);
  const std::int64_t supply = y->denominator() / divisor;
  if (supply > kShareUnitMax / static_cast<std::int64_t>(topology.members().size()))
    return absl::ResourceExhaustedError(
        fmt::format("the plan would need {} trees per member: round the bandwidths", supply));
  std::vector<std::int64_t> capacities;
  for (const Link& link : topology.links())
    capacities.push_back(link.capacity / divisor * y->numerator());
  absl::StatusOr<std::vector<PathEdge>> edges = RemoveSwitches(topology, capacities, supply);
  if (!edges.ok()) return edges.status();
  return PackTrees(topology, *std::move(edges), supply, options.progress);
}

absl::StatusOr<Forest> PlanPacking(const Topology& topology, const PlannerOptions& options) {
  return GrowBothPhases(topology, "packing",
                        [&](const Topology& direction) { return GrowPacking(direction, options); });
}

}  // namespace

Planner PackingPlanner() {
  return {"packing", "packs spanning trees for optimal use of the bandwidth", PackingApplies,
          PlanPacking};
}

}  // namespace phub::plan
