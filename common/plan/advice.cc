#include "common/plan/advice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/chooser.h"
#include "common/plan/generators.h"
#include "common/plan/simulator.h"
#include "common/plan/verifier.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// Of one plan. Daemons compute advice, too.
constexpr std::uint64_t kFlowWorkMax = std::uint64_t{1} << 24;

class Adviser {
 public:
  Adviser(const Topology& configured, const Topology& truth, const Measured& measured,
          const AdviceOptions& options)
      : configured_(configured), truth_(truth), measured_(measured), options_(options) {}

  absl::Status Run(const RankGroups& groups, Advice& advice) {
    if (absl::Status status = Configured(advice); !status.ok()) return status;
    if (absl::Status status = Proposed(); !status.ok()) return status;
    if (absl::Status status = Ring(groups, advice); !status.ok()) return status;
    absl::StatusOr<Forest> plan = Transfer(truth_, best_, configured_);
    if (!plan.ok()) return plan.status();
    if (const auto report = Verify(configured_, *plan); !report.ok()) return report.status();
    advice.plan = *std::move(plan);
    advice.proposed = {best_.planner, best_seconds_};
    return absl::OkStatus();
  }

 private:
  ChooserOptions Choosing() const {
    ChooserOptions choosing;
    choosing.simulation.size_bytes = options_.size_bytes;
    choosing.planner.starts = options_.starts;
    choosing.pieces_max = options_.pieces_max;
    choosing.flow_work_max = kFlowWorkMax;
    choosing.progress = options_.progress;
    return choosing;
  }

  // The time on the measured topology with the best number of pieces.
  absl::StatusOr<double> SecondsOf(const Forest& forest) const {
    double best = std::numeric_limits<double>::infinity();
    absl::Status status;
    for (std::uint32_t pieces = 1; pieces <= options_.pieces_max; pieces *= 4) {
      const SimulationOptions simulation{.size_bytes = options_.size_bytes, .pieces = pieces};
      const absl::StatusOr<SimulationResult> result = Simulate(truth_, forest, simulation);
      if (result.ok()) {
        best = std::min(best, result->seconds());
      } else {
        status = result.status();
      }
    }
    if (best == std::numeric_limits<double>::infinity()) return status;
    return best;
  }

  // Keeps the forest if it is the fastest so far. REQUIRES: it is on the measured topology.
  absl::Status Offer(const Forest& forest) {
    const absl::StatusOr<double> seconds = SecondsOf(forest);
    if (!seconds.ok()) return seconds.status();
    if (*seconds >= best_seconds_) return absl::OkStatus();
    best_seconds_ = *seconds;
    best_ = forest;
    return absl::OkStatus();
  }

  // The fastest candidate that daemons can run: plans that sum in switches are excluded.
  static const Candidate* BestOf(const Choice& choice) {
    const Candidate* best = nullptr;
    for (const Candidate& candidate : choice.candidates) {
      if (!candidate.status.ok() || candidate.sums_in_switches) continue;
      if (best == nullptr || candidate.seconds < best->seconds) best = &candidate;
    }
    return best;
  }

  absl::Status Configured(Advice& advice) {
    const absl::StatusOr<Choice> choice = Choose(configured_, Choosing());
    if (!choice.ok()) return choice.status();
    const Candidate* const best = BestOf(*choice);
    if (best == nullptr)
      return absl::InvalidArgumentError(
          "no planner supports the topology of the racks; see: phubctl plan compare");
    const absl::StatusOr<Forest> here = Transfer(configured_, best->forest, truth_);
    if (!here.ok()) return here.status();
    if (absl::Status status = Offer(*here); !status.ok()) return status;
    advice.configured = {best->planner, best_seconds_};
    return absl::OkStatus();
  }

  absl::Status Proposed() {
    const absl::StatusOr<Choice> choice = Choose(truth_, Choosing());
    if (!choice.ok()) return choice.status();
    const Candidate* const best = BestOf(*choice);
    if (best == nullptr) {
      return absl::InvalidArgumentError("no planner supports the measured topology");
    }
    return Offer(best->forest);
  }

  // Orders a ring by costs only, without knowledge of the network, as Cloud Collectives does.
  absl::Status Ring(const RankGroups& groups, Advice& advice) {
    const std::size_t count = truth_.members().size();
    const absl::StatusOr<Topology> plain = Generate(fmt::format("switch:{}", count));
    if (!plain.ok()) return plain.status();
    const absl::StatusOr<Forest> made = MakePlan(*FindPlanner("ring"), *plain, {});
    if (!made.ok()) return made.status();
    const absl::StatusOr<Forest> ring = Transfer(*plain, *made, truth_);
    if (!ring.ok()) return ring.status();
    const CostMatrix costs =
        CostsOf(measured_, options_.size_bytes / static_cast<std::int64_t>(count));
    const SimulationOptions simulation{.size_bytes = options_.size_bytes};
    const absl::StatusOr<ReorderResult> ordered = Reorder(truth_, *ring, costs, simulation);
    if (!ordered.ok()) return ordered.status();
    for (const NodeIndex member : ordered->order) advice.order.push_back(truth_.RankOf(member));
    Rotate(groups, advice.order);
    const absl::StatusOr<double> before = SecondsOf(*ring);
    const absl::StatusOr<double> after = SecondsOf(ordered->forest);
    if (!before.ok()) return before.status();
    if (!after.ok()) return after.status();
    advice.ring_seconds = *before;
    advice.ordered_ring_seconds = *after;
    return Offer(ordered->forest);
  }

  // Rotates the ring so that it starts where it enters the group of rank 0, or with one group, at
  // rank 0.
  static void Rotate(const RankGroups& groups, std::vector<std::uint32_t>& order) {
    std::vector<bool> is_first(order.size(), false);
    for (const std::uint32_t rank : groups[0]) is_first[rank] = true;
    auto begin = std::find(order.begin(), order.end(), 0u);
    for (std::size_t i = 0; groups.size() > 1 && i < order.size(); ++i) {
      const std::uint32_t before = order[(i + order.size() - 1) % order.size()];
      if (!is_first[order[i]] || is_first[before]) continue;
      begin = order.begin() + static_cast<std::ptrdiff_t>(i);
      break;
    }
    std::rotate(order.begin(), begin, order.end());
  }

  const Topology& configured_;
  const Topology& truth_;
  const Measured& measured_;
  const AdviceOptions& options_;
  Forest best_;
  double best_seconds_ = std::numeric_limits<double>::infinity();
};

}  // namespace

absl::StatusOr<Advice> Advise(const Topology& configured, const Measured& measured,
                              const RankGroups& groups, const SquareMatrix& between,
                              const AdviceOptions& options) {
  std::vector<std::string> names;
  for (const NodeIndex member : configured.members()) names.push_back(configured.node(member).name);
  absl::StatusOr<Topology> truth = TopologyOf(names, measured, groups, between);
  if (!truth.ok()) return truth.status();
  Advice advice{.measured = *std::move(truth)};
  if (absl::Status status =
          Adviser(configured, advice.measured, measured, options).Run(groups, advice);
      !status.ok()) {
    return status;
  }
  return advice;
}

}  // namespace phub::plan
