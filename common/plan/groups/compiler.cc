#include "common/plan/groups/compiler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/groups/fred_plans.h"
#include "common/plan/groups/leaf_spine.h"
#include "common/plan/groups/switch_trees.h"
#include "common/plan/groups/together.h"
#include "common/plan/simulator.h"
#include "common/plan/verifier.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr std::size_t kEdgesOfGroupMax = std::size_t{1} << 18;
// A tree on FRED's network may have a switch as a vertex at every level.
constexpr std::size_t kFredVerticesPerMember = 3;

absl::Status OutOfRange() {
  return absl::InvalidArgumentError("the loads exceed 63 bits: round the sizes and bandwidths");
}

// Members that are homes: all of them, or evenly chosen ones if the plan would be too large.
std::vector<NodeIndex> HomesOf(const std::vector<NodeIndex>& members, std::size_t edges_per_home) {
  const std::size_t most = std::max<std::size_t>(kEdgesOfGroupMax / edges_per_home, 1);
  const std::size_t count = std::min(members.size(), most);
  std::vector<NodeIndex> homes;
  for (std::size_t i = 0; i < count; ++i) homes.push_back(members[i * members.size() / count]);
  return homes;
}

std::size_t SlotsOf(const Topology& topology, const Forest& forest) {
  std::size_t slots = 0;
  for (const Tree& tree : forest.trees) {
    std::set<NodeIndex> switches;
    for (const Edge& edge : tree.reduce)
      if (!topology.IsMember(edge.to)) switches.insert(edge.to);
    slots += switches.size();
  }
  return slots;
}

// The plan of one group over leaves and spines.
class SpineForest {
 public:
  SpineForest(const Topology& topology, const LeafSpine& network, const Group& group)
      : topology_(topology), network_(network) {
    for (const std::uint32_t rank : group.ranks) {
      members_.push_back(topology.members()[rank]);
      leaves_.push_back(network.leaf_of[rank]);
    }
  }

  absl::StatusOr<Forest> Build(const std::vector<GroupSpine>& spines) const {
    std::vector<GroupSpine> ways = spines;
    if (ways.empty()) ways.push_back({NodeIndex{kNoIndex}, Rational(1)});
    const std::vector<NodeIndex> homes = HomesOf(members_, ways.size() * 4 * members_.size());
    std::int64_t unit = 1;
    for (const GroupSpine& way : ways) {
      const auto common = CommonMultiple(unit, way.share.denominator(),
                                         kShareUnitMax / static_cast<std::int64_t>(homes.size()));
      if (!common)
        return absl::InvalidArgumentError(
            "the groups' shares have no common unit: round the sizes and bandwidths");
      unit = *common;
    }
    OutForest forest;
    forest.share_unit = unit * static_cast<std::int64_t>(homes.size());
    for (const NodeIndex home : homes)
      for (const GroupSpine& way : ways)
        forest.trees.push_back(
            TreeOf(home, way.spine, way.share.numerator() * (unit / way.share.denominator())));
    absl::StatusOr<Forest> plan = MirrorPhase(topology_, "groups", forest);
    if (plan.ok()) plan->group = members_;
    return plan;
  }

 private:
  OutTree TreeOf(NodeIndex home, NodeIndex spine, std::int64_t share) const {
    SwitchTree tree(topology_, false);
    const auto home_place = std::find(members_.begin(), members_.end(), home) - members_.begin();
    const NodeIndex home_leaf = network_.leaves[leaves_[static_cast<std::size_t>(home_place)]];
    if (home_leaf != home) tree.Add(home, home_leaf);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const NodeIndex leaf = network_.leaves[leaves_[i]];
      if (leaf != home_leaf) {
        tree.Add(home_leaf, spine);
        tree.Add(spine, leaf);
      }
      if (members_[i] != home && members_[i] != leaf) tree.Add(leaf, members_[i]);
    }
    return tree.Contract(home, share);
  }

  const Topology& topology_;
  const LeafSpine& network_;
  std::vector<NodeIndex> members_;
  std::vector<std::uint32_t> leaves_;  // by member of the group
};

class GroupCompiler {
 public:
  GroupCompiler(const Topology& topology, std::span<const Group> groups,
                const CompilerOptions& options)
      : topology_(topology), groups_(groups), options_(options) {}

  absl::StatusOr<CompiledGroups> Compile() {
    for (const Group& group : groups_) compiled_.bytes = std::max(compiled_.bytes, group.bytes);
    compiled_.groups.resize(groups_.size());
    for (const Phase phase : kPhases) {
      CompiledPhase list;
      list.phase = phase;
      for (std::uint32_t i = 0; i < groups_.size(); ++i)
        if (groups_[i].phase == phase) list.groups.push_back(i);
      if (!list.groups.empty()) compiled_.phases.push_back(std::move(list));
    }
    const std::optional<FredShape> fred = FredShapeOf(topology_);
    compiled_.takes_turns = fred.has_value();
    const absl::StatusOr<LeafSpine> network =
        fred ? absl::StatusOr<LeafSpine>(LeafSpine{}) : FindLeavesAndSpines(topology_);
    if (!network.ok()) return network.status();
    for (CompiledPhase& phase : compiled_.phases) {
      if (absl::Status status = fred ? RoutePhase(*fred, phase) : DividePhase(*network, phase);
          !status.ok())
        return status;
      if (absl::Status status = CheckPlans(phase); !status.ok()) return status;
      if (absl::Status status = TimePhase(phase); !status.ok()) return status;
    }
    return std::move(compiled_);
  }

 private:
  absl::Status DividePhase(const LeafSpine& network, CompiledPhase& phase) {
    std::vector<SpineDemand> demands;
    std::vector<std::uint32_t> crossing;
    Rational members_load;  // in bytes per capacity
    for (const std::uint32_t i : phase.groups) {
      std::set<std::uint32_t> leaves;
      for (const std::uint32_t rank : groups_[i].ranks) {
        leaves.insert(network.leaf_of[rank]);
        if (network.member_capacity[rank] == 0) continue;
        const auto load = Rational::Make(groups_[i].bytes, network.member_capacity[rank]);
        members_load = std::max(members_load, *load);
      }
      for (const std::uint32_t leaf : leaves)
        compiled_.groups[i].leaves.push_back(network.leaves[leaf]);
      if (leaves.size() < 2) continue;
      demands.push_back({{leaves.begin(), leaves.end()}, groups_[i].bytes});
      crossing.push_back(i);
    }
    const auto bound = LeafBound(network, demands);
    if (!bound) return OutOfRange();
    const auto shares = DivideAmongSpines(
        network, demands, options_.least_load ? *bound : std::max(*bound, members_load));
    if (!shares.ok()) return shares.status();
    phase.crossing = crossing.size();
    phase.pairs = shares->pairs;
    phase.pairs_least = shares->pairs_least;
    phase.conflicts = shares->conflicts;
    for (const auto& [bytes_per_capacity, time] :
         {std::pair{shares->load, &phase.load}, std::pair{*bound, &phase.bound},
          std::pair{members_load, &phase.members_load}}) {
      const auto scaled =
          Rational::Make(Wide{bytes_per_capacity.numerator()} * topology_.unit_capacity(),
                         Wide{bytes_per_capacity.denominator()} * compiled_.bytes);
      if (!scaled) return OutOfRange();
      *time = *scaled;
    }
    for (std::size_t i = 0; i < crossing.size(); ++i)
      for (const SpineShare& share : shares->by_group[i])
        compiled_.groups[crossing[i]].spines.push_back({network.spines[share.spine], share.share});
    for (const std::uint32_t i : phase.groups) {
      absl::StatusOr<Forest> forest =
          SpineForest(topology_, network, groups_[i]).Build(compiled_.groups[i].spines);
      if (!forest.ok()) return InGroup(i, forest.status());
      compiled_.groups[i].forest = *std::move(forest);
    }
    return absl::OkStatus();
  }

  absl::Status RoutePhase(const FredShape& shape, CompiledPhase& phase) {
    std::vector<const Group*> groups;
    for (const std::uint32_t i : phase.groups) groups.push_back(&groups_[i]);
    const FredTurns turns = RouteGroups(shape, groups);
    phase.turns = turns.turns;
    phase.is_proven = turns.is_proven;
    for (std::size_t place = 0; place < phase.groups.size(); ++place) {
      const std::uint32_t i = phase.groups[place];
      CompiledGroup& group = compiled_.groups[i];
      group.turn = turns.turn_of[place];
      phase.conflicts += group.turn > 0 ? 1 : 0;
      std::vector<NodeIndex> members;
      for (const std::uint32_t rank : groups_[i].ranks)
        members.push_back(topology_.members()[rank]);
      absl::StatusOr<Forest> forest =
          FredForest(topology_, shape, groups_[i], turns.middles[place],
                     HomesOf(members, 4 * members.size() * kFredVerticesPerMember));
      if (!forest.ok()) return InGroup(i, forest.status());
      group.forest = *std::move(forest);
      group.forest.group = std::move(members);
    }
    return LoadTurns(phase);
  }

  // No two groups of a turn share a link, so the busiest link is that of one group.
  absl::Status LoadTurns(CompiledPhase& phase) {
    for (const std::uint32_t i : phase.groups) {
      const Forest& forest = compiled_.groups[i].forest;
      std::vector<std::int64_t> shares(topology_.links().size(), 0);
      for (const Tree& tree : forest.trees)
        for (const auto* edges : {&tree.reduce, &tree.gather})
          for (const Edge& edge : *edges)
            for (const LinkIndex link : forest.paths[edge.path.value])
              shares[link.value] += tree.share;
      for (std::uint32_t link = 0; link < shares.size(); ++link) {
        const auto time = TimeOn(topology_, LinkIndex{link}, shares[link], forest.share_unit);
        const auto part = Rational::Make(groups_[i].bytes, compiled_.bytes);
        const auto load = time && part ? Multiply(*time, *part) : std::nullopt;
        if (!load) return OutOfRange();
        const Link& ends = topology_.link(LinkIndex{link});
        Rational& busiest = topology_.IsMember(ends.from) || topology_.IsMember(ends.to)
                                ? phase.members_load
                                : phase.load;
        busiest = std::max(busiest, *load);
      }
    }
    return absl::OkStatus();
  }

  absl::Status InGroup(std::uint32_t group, const absl::Status& status) const {
    return absl::Status(status.code(), fmt::format("group '{}': {}", groups_[group].name,
                                                   std::string(status.message())));
  }

  absl::Status CheckPlans(const CompiledPhase& phase) {
    for (const std::uint32_t i : phase.groups) {
      CompiledGroup& group = compiled_.groups[i];
      if (const auto report = Verify(topology_, group.forest); !report.ok())
        return InGroup(i, absl::InternalError(fmt::format("the plan is not valid: {}",
                                                          std::string(report.status().message()))));
      group.slots = SlotsOf(topology_, group.forest);
    }
    return absl::OkStatus();
  }

  absl::Status TimePhase(CompiledPhase& phase) {
    for (std::uint32_t turn = 0; turn < phase.turns; ++turn) {
      std::vector<std::uint32_t> together;
      for (const std::uint32_t i : phase.groups) {
        if (compiled_.groups[i].turn != turn) continue;
        together.push_back(i);
        const auto alone = SimulateGroups({i});
        if (!alone.ok()) return alone.status();
        compiled_.groups[i].seconds_alone = alone->front();
      }
      const auto seconds = SimulateGroups(together);
      if (!seconds.ok()) return seconds.status();
      for (std::size_t i = 0; i < together.size(); ++i)
        compiled_.groups[together[i]].seconds_together = (*seconds)[i];
      phase.seconds += *std::max_element(seconds->begin(), seconds->end());
    }
    return absl::OkStatus();
  }

  // When each of these groups has its results, if all of them start at once.
  absl::StatusOr<std::vector<double>> SimulateGroups(const std::vector<std::uint32_t>& indices) {
    std::vector<SizedPlan> plans;
    for (const std::uint32_t i : indices)
      plans.push_back({&compiled_.groups[i].forest, groups_[i].bytes});
    return SimulateTogether(topology_, plans, options_.pieces);
  }

  const Topology& topology_;
  const std::span<const Group> groups_;
  const CompilerOptions& options_;
  CompiledGroups compiled_;
};

}  // namespace

absl::StatusOr<CompiledGroups> CompileGroups(const Topology& topology,
                                             std::span<const Group> groups,
                                             const CompilerOptions& options) {
  return GroupCompiler(topology, groups, options).Compile();
}

}  // namespace phub::plan
