#include "common/plan/planners/out_forest.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/plan/rational.h"

namespace phub::plan {
namespace {

std::uint32_t StepsOf(const OutForest& forest) {
  std::uint32_t steps = 0;
  for (const OutTree& tree : forest.trees)
    for (const OutEdge& edge : tree.edges) steps = std::max(steps, edge.step + 1);
  return steps;
}

// A part of a tree that carries [begin, begin + share) of its home's data.
struct Piece {
  std::size_t tree = 0;
  std::int64_t end = 0;
};

// For each home: the trees, and where each ends in the home's data. Shares are in 1/unit.
std::map<NodeIndex, std::vector<Piece>> PiecesByHome(const OutForest& forest, std::int64_t unit) {
  std::map<NodeIndex, std::vector<Piece>> pieces;
  for (std::size_t i = 0; i < forest.trees.size(); ++i) {
    std::vector<Piece>& list = pieces[forest.trees[i].home];
    const std::int64_t before = list.empty() ? 0 : list.back().end;
    list.push_back({i, before + forest.trees[i].share * (unit / forest.share_unit)});
  }
  return pieces;
}

class Builder {
 public:
  Builder(const Topology& topology, std::string_view planner)
      : topology_(topology), paths_(forest_) {
    forest_.planner = planner;
    forest_.topology = topology.name();
  }

  absl::StatusOr<Forest> Pair(const OutForest& up, bool up_is_mirrored, const OutForest& down) {
    const auto unit = CommonMultiple(up.share_unit, down.share_unit, kShareUnitMax);
    if (!unit)
      return absl::ResourceExhaustedError(
          "the trees' shares have no common unit: round the bandwidths");
    forest_.share_unit = *unit;
    const std::uint32_t up_steps = StepsOf(up);
    const auto up_pieces = PiecesByHome(up, *unit);
    std::size_t edge_count = 0;
    for (const auto& [home, down_list] : PiecesByHome(down, *unit)) {
      const std::vector<Piece>& up_list = up_pieces.at(home);
      PHUB_CHECK(up_list.back().end == down_list.back().end, "home={}", home.value);
      std::int64_t begin = 0;
      for (std::size_t u = 0, d = 0; d < down_list.size();) {
        const std::int64_t end = std::min(up_list[u].end, down_list[d].end);
        Tree& tree = forest_.trees.emplace_back();
        tree.home = home;
        tree.share = end - begin;
        for (const OutEdge& edge : up.trees[up_list[u].tree].edges)
          tree.reduce.push_back({edge.to, edge.from, up_steps - 1 - edge.step,
                                 paths_.Intern(Backwards(edge.path, up_is_mirrored))});
        for (const OutEdge& edge : down.trees[down_list[d].tree].edges)
          tree.gather.push_back(
              {edge.from, edge.to, up_steps + edge.step, paths_.Intern(edge.path)});
        edge_count += tree.reduce.size() + tree.gather.size();
        if (edge_count > kEdgesMax)
          return absl::ResourceExhaustedError("the plan has too many edges: round the bandwidths");
        if (up_list[u].end == end) ++u;
        if (down_list[d].end == end) ++d;
        begin = end;
      }
    }
    return std::move(forest_);
  }

 private:
  // Link i of the reversed topology is link i reversed: only the order of a path's links changes.
  Path Backwards(const Path& path, bool is_mirrored) const {
    Path result(path.rbegin(), path.rend());
    if (is_mirrored)
      for (LinkIndex& link : result) link = *topology_.MirrorOf(link);
    return result;
  }

  const Topology& topology_;
  Forest forest_;
  PathTable paths_;
};

}  // namespace

void StepsByDepth(OutTree& tree) {
  std::map<NodeIndex, std::uint32_t> depth{{tree.home, 0}};
  for (OutEdge& edge : tree.edges) {
    edge.step = depth.at(edge.from);
    depth[edge.to] = edge.step + 1;
  }
}

absl::StatusOr<Forest> PairPhases(const Topology& topology, std::string_view planner,
                                  const OutForest& reversed_reduce, const OutForest& gather) {
  return Builder(topology, planner).Pair(reversed_reduce, false, gather);
}

absl::StatusOr<Forest> MirrorPhase(const Topology& topology, std::string_view planner,
                                   const OutForest& gather) {
  return Builder(topology, planner).Pair(gather, true, gather);
}

absl::StatusOr<Forest> GrowBothPhases(
    const Topology& topology, std::string_view planner,
    const std::function<absl::StatusOr<OutForest>(const Topology&)>& grow) {
  const absl::StatusOr<OutForest> down = grow(topology);
  if (!down.ok()) return down.status();
  if (topology.IsSymmetric()) return MirrorPhase(topology, planner, *down);
  const absl::StatusOr<OutForest> up = grow(topology.Reversed());
  if (!up.ok()) return up.status();
  return PairPhases(topology, planner, *up, *down);
}

}  // namespace phub::plan
