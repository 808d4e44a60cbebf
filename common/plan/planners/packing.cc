// Optimal spanning-tree packing (Zhao et al., "ForestColl: Throughput-Optimal Collective
// Communications on Heterogeneous Network Fabrics", 2024), in integers throughout. By bandwidth, no
// exchange that reduces all data before it gathers them is faster.
//
//  1. The bound (common/plan/bound.h) of an all-gather is y = p/q chunk times. Capacities are
//     multiplied by U = p/g, where g divides q and every capacity. Every member becomes the root of
//     k = q/g trees. The k trees of all members together exactly fill the worst cut.
//  2. Plain switches cannot be vertices of a tree. They are replaced by direct edges between their
//     neighbours that preserve the maximum flow to every member (planners/switch_removal.h). Each
//     neighbour gets edges to several others where the flow permits: with few thick edges, trees
//     would be chains.
//  3. k trees from every member are packed into these edges, edge by edge. Before each edge a
//     maximum flow gives the number of copies of the tree that can take it such that the other
//     trees remain possible (Edmonds 1973; with copies, Berczi and Frank 2010;
//     planners/tree_packing.h). Among possible edges, this planner takes the one nearest to the
//     root, for shallow trees.
//  4. Every edge stores its physical path, so results need no mapping to the physical network.
//
// A copy of a tree carries 1/(N*k) of the data. Trees that are grown last find few edges left and
// are deeper than others. Packing is therefore for large sizes in many pieces; the chooser decides.
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

// The cost of the flows in steps 2 and 3 grows at least with the cube of the members. At these
// limits the search takes 10 to 20 s.
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
  // The bound in units of capacity instead of unit links.
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
