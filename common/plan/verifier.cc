#include "common/plan/verifier.h"

#include <algorithm>

#include "absl/status/status.h"
#include "common/plan/verify_tree.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// Checks each edge separately, before trees are executed.
class FormChecker {
 public:
  FormChecker(const Topology& topology, const Forest& forest)
      : topology_(topology), forest_(forest), visited_(topology.nodes().size(), 0) {}

  absl::Status Check() {
    if (absl::Status status = CheckGroup(); !status.ok()) return status;
    if (absl::Status status = CheckShares(); !status.ok()) return status;
    std::size_t edge_count = 0;
    for (std::size_t tree = 0; tree < forest_.trees.size(); ++tree) {
      for (const bool reduces : {true, false}) {
        const auto& edges = reduces ? forest_.trees[tree].reduce : forest_.trees[tree].gather;
        edge_count += edges.size();
        if (edge_count > kEdgesMax)
          return absl::InvalidArgumentError(
              fmt::format("the plan has more than {} edges", kEdgesMax));
        for (const Edge& edge : edges) {
          const std::string reason = FaultOf(edge);
          if (!reason.empty())
            return absl::InvalidArgumentError(fmt::format(
                "{}: {}", DescribeEdge(topology_, forest_, tree, reduces, edge), reason));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckGroup() {
    if (forest_.group.size() == 1)
      return absl::InvalidArgumentError("the plan's group has only one member");
    for (std::size_t i = 0; i < forest_.group.size(); ++i) {
      const NodeIndex member = forest_.group[i];
      if (member.value >= topology_.nodes().size() || !topology_.IsMember(member))
        return absl::InvalidArgumentError(
            fmt::format("place {} of the group is not a member of the topology", i));
      if (i > 0 && topology_.RankOf(forest_.group[i - 1]) >= topology_.RankOf(member))
        return absl::InvalidArgumentError(fmt::format(
            "the group lists {} twice or not in the order of ranks", topology_.node(member).name));
    }
    is_outside_.assign(topology_.nodes().size(), false);
    if (forest_.group.empty()) return absl::OkStatus();
    for (const NodeIndex member : topology_.members()) is_outside_[member.value] = true;
    for (const NodeIndex member : forest_.group) is_outside_[member.value] = false;
    return absl::OkStatus();
  }

  absl::Status CheckShares() const {
    if (forest_.trees.empty()) return absl::InvalidArgumentError("the plan has no tree");
    if (forest_.share_unit < 1 || forest_.share_unit > kShareUnitMax)
      return absl::InvalidArgumentError(fmt::format("the share unit is {}; it must be from 1 to {}",
                                                    forest_.share_unit, kShareUnitMax));
    Wide sum = 0;
    for (std::size_t tree = 0; tree < forest_.trees.size(); ++tree) {
      const auto& [home, share, reduce, gather] = forest_.trees[tree];
      if (home.value >= topology_.nodes().size() || !topology_.IsMember(home))
        return absl::InvalidArgumentError(fmt::format("tree {}: the home is not a member", tree));
      if (is_outside_[home.value])
        return absl::InvalidArgumentError(fmt::format(
            "tree {}: the home {} is not in the plan's group", tree, topology_.node(home).name));
      if (share < 1 || share > forest_.share_unit)
        return absl::InvalidArgumentError(
            fmt::format("tree {} (home {}): the share is {}/{}; it must be above 0 and at most 1",
                        tree, topology_.node(home).name, share, forest_.share_unit));
      sum += share;
    }
    if (sum != forest_.share_unit)
      return absl::InvalidArgumentError(
          fmt::format("the trees' shares sum to {:.6g}; they must sum to 1",
                      static_cast<double>(sum) / static_cast<double>(forest_.share_unit)));
    return absl::OkStatus();
  }

  std::string FaultOf(const Edge& edge) {
    for (const NodeIndex end : {edge.from, edge.to}) {
      if (end.value >= topology_.nodes().size()) return "one of its nodes is not in the topology";
      if (topology_.node(end).kind == NodeKind::kSwitch)
        return fmt::format("{} is a switch that cannot sum", topology_.node(end).name);
      if (is_outside_[end.value])
        return fmt::format("{} is not in the plan's group", topology_.node(end).name);
    }
    if (edge.from == edge.to) return "it connects a node to itself";
    if (edge.step >= kStepsMax) return fmt::format("the step exceeds {}", kStepsMax - 1);
    if (edge.path.value >= forest_.paths.size()) return "it has no path";
    return PathFault(edge, forest_.paths[edge.path.value]);
  }

  std::string PathFault(const Edge& edge, const Path& path) {
    ++visit_;
    NodeIndex at = edge.from;
    visited_[at.value] = visit_;
    for (const LinkIndex index : path) {
      if (index.value >= topology_.links().size())
        return "its path contains a link that does not exist";
      const Link& link = topology_.link(index);
      if (link.from != at)
        return fmt::format("its path has a gap before link {}", topology_.LinkName(index));
      if (at != edge.from && topology_.IsMember(at) && !topology_.members_forward())
        return fmt::format("its path passes through member {}, which does not forward",
                           topology_.node(at).name);
      at = link.to;
      if (visited_[at.value] == visit_)
        return fmt::format("its path visits {} twice", topology_.node(at).name);
      visited_[at.value] = visit_;
    }
    if (at != edge.to)
      return fmt::format("its path ends at another node, {}", topology_.node(at).name);
    return "";
  }

  const Topology& topology_;
  const Forest& forest_;
  std::vector<bool> is_outside_;        // by node: a member that is not in the group
  std::vector<std::uint32_t> visited_;  // by node: visit_ of the last path through it
  std::uint32_t visit_ = 0;
};

// Sums the loads. The busiest link is the one with the greatest share/capacity.
class LoadCounter {
 public:
  LoadCounter(const Topology& topology, const Forest& forest)
      : topology_(topology), forest_(forest) {}

  absl::Status Count(VerifyReport& report) {
    CountEdges(report);
    if (absl::Status status = CountSteps(report); !status.ok()) return status;
    std::vector<LinkLoad> reduce, gather, total;
    for (std::uint32_t i = 0; i < topology_.links().size(); ++i) {
      reduce.push_back({LinkIndex{i}, report.reduce_load[i]});
      gather.push_back({LinkIndex{i}, report.gather_load[i]});
      total.push_back({LinkIndex{i}, report.reduce_load[i] + report.gather_load[i]});
    }
    for (const auto& [loads, time] :
         {std::pair{&reduce, &report.reduce_time}, std::pair{&gather, &report.gather_time},
          std::pair{&total, &report.total_time}}) {
      const auto busiest = BusiestTime(*loads);
      if (!busiest) return TooFine();
      *time = *busiest;
    }
    return absl::OkStatus();
  }

 private:
  struct Use {
    std::uint32_t step;
    LinkIndex link;
    std::int64_t share;
  };

  void CountEdges(VerifyReport& report) {
    report.reduce_load.assign(topology_.links().size(), 0);
    report.gather_load.assign(topology_.links().size(), 0);
    for (const bool reduces : {true, false}) {
      std::uint32_t first = kStepsMax, last = 0;
      for (const Tree& tree : forest_.trees) {
        for (const Edge& edge : reduces ? tree.reduce : tree.gather) {
          first = std::min(first, edge.step);
          last = std::max(last, edge.step);
          for (const LinkIndex link : forest_.paths[edge.path.value]) {
            (reduces ? report.reduce_load : report.gather_load)[link.value] += tree.share;
            uses_.push_back({edge.step, link, tree.share});
          }
        }
      }
      (reduces ? report.reduce_steps : report.gather_steps) = first > last ? 0 : last - first + 1;
    }
  }

  absl::Status CountSteps(VerifyReport& report) {
    report.steps = StepCount(forest_);
    report.step_loads.resize(report.steps);
    std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
      return a.step != b.step ? a.step < b.step : a.link < b.link;
    });
    for (const Use& use : uses_) {
      std::vector<LinkLoad>& loads = report.step_loads[use.step];
      if (loads.empty() || loads.back().link != use.link) loads.push_back({use.link, 0});
      loads.back().share += use.share;
    }
    for (const std::vector<LinkLoad>& loads : report.step_loads) {
      const auto busiest = BusiestTime(loads);
      if (!busiest) return TooFine();
      report.step_times.push_back(*busiest);
      report.lockstep_time += busiest->ToDouble();
    }
    return absl::OkStatus();
  }

  std::optional<Rational> BusiestTime(const std::vector<LinkLoad>& loads) const {
    if (loads.empty()) return Rational(0);
    const auto busiest =
        std::max_element(loads.begin(), loads.end(), [&](const LinkLoad& a, const LinkLoad& b) {
          return Wide{a.share} * topology_.link(b.link).capacity <
                 Wide{b.share} * topology_.link(a.link).capacity;
        });
    return TimeOn(topology_, busiest->link, busiest->share, forest_.share_unit);
  }

  static absl::Status TooFine() {
    return absl::InvalidArgumentError(
        "the loads of links exceed 63 bits: round the shares and bandwidths");
  }

  const Topology& topology_;
  const Forest& forest_;
  std::vector<Use> uses_;
};

}  // namespace

std::optional<Rational> TimeOn(const Topology& topology, LinkIndex link, std::int64_t share,
                               std::int64_t share_unit) {
  return Rational::Make(Wide{share} * topology.unit_capacity(),
                        Wide{share_unit} * topology.link(link).capacity);
}

absl::StatusOr<VerifyReport> Verify(const Topology& topology, const Forest& forest) {
  if (absl::Status status = FormChecker(topology, forest).Check(); !status.ok()) return status;
  TreeVerifier verifier(topology, forest);
  for (std::size_t tree = 0; tree < forest.trees.size(); ++tree)
    if (absl::Status status = verifier.Verify(tree); !status.ok()) return status;
  VerifyReport report;
  if (absl::Status status = LoadCounter(topology, forest).Count(report); !status.ok())
    return status;
  return report;
}

}  // namespace phub::plan
