#include "common/plan/groups/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "common/plan/simulator.h"

namespace phub::plan {
namespace {

// Transfers of plans that are simulated at the same time.
constexpr std::size_t kTransfersTogetherMax = std::size_t{1} << 19;

// All trees in one forest, which is not valid as a plan but can be simulated.
struct Joined {
  Forest forest;
  std::vector<std::uint32_t> plan_of;  // by tree
};

Joined Join(std::span<const SizedPlan> plans, std::int64_t bytes) {
  constexpr double kUnit = static_cast<double>(kShareUnitMax);
  Joined joined;
  Forest& all = joined.forest;
  all.share_unit = kShareUnitMax;
  for (std::uint32_t place = 0; place < plans.size(); ++place) {
    const Forest& forest = *plans[place].forest;
    const double part = static_cast<double>(plans[place].bytes) / static_cast<double>(bytes) /
                        static_cast<double>(forest.share_unit);
    const auto first_path = static_cast<std::uint32_t>(all.paths.size());
    all.paths.insert(all.paths.end(), forest.paths.begin(), forest.paths.end());
    for (Tree tree : forest.trees) {
      for (auto* edges : {&tree.reduce, &tree.gather})
        for (Edge& edge : *edges) edge.path = PathIndex{edge.path.value + first_path};
      tree.share =
          std::max<std::int64_t>(std::llround(kUnit * part * static_cast<double>(tree.share)), 1);
      all.trees.push_back(std::move(tree));
      joined.plan_of.push_back(place);
    }
  }
  return joined;
}

}  // namespace

absl::StatusOr<std::vector<double>> SimulateTogether(const Topology& topology,
                                                     std::span<const SizedPlan> plans,
                                                     std::uint32_t pieces) {
  std::int64_t bytes = 0;
  std::size_t edges = 0;
  for (const SizedPlan& plan : plans) {
    edges += EdgeCount(*plan.forest);
    if (edges > kEdgesMax) {
      return absl::InvalidArgumentError(
          fmt::format("the plans have more than {} edges together", kEdgesMax));
    }
    if (plan.bytes > kSizeBytesMax - bytes) {
      return absl::InvalidArgumentError(
          fmt::format("the plans have more than {} bytes together", kSizeBytesMax));
    }
    bytes += plan.bytes;
  }
  const Joined joined = Join(plans, bytes);
  SimulationOptions simulation;
  simulation.size_bytes = bytes;
  simulation.pieces =
      static_cast<std::uint32_t>(std::clamp<std::size_t>(kTransfersTogetherMax / edges, 1, pieces));
  simulation.keep_timeline = true;
  const absl::StatusOr<SimulationResult> result = Simulate(topology, joined.forest, simulation);
  if (!result.ok()) return result.status();
  std::vector<double> seconds(plans.size(), 0);
  for (const TransferTimes& times : result->timeline) {
    double& last = seconds[joined.plan_of[times.tree]];
    last = std::max(last, static_cast<double>(times.arrived_ps) * 1e-12);
  }
  return seconds;
}

}  // namespace phub::plan
