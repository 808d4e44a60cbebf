#include "common/plan/chooser.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/verifier.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// A large plan is not simulated as flows if its lockstep time exceeds the best one by this factor.
// Small plans always are: lockstep adds up the latencies of all steps.
constexpr double kHopeless = 2.5;
// With more transfers a flow simulation takes many seconds; the lockstep time is used instead.
constexpr std::size_t kFlowTransfersMax = std::size_t{1} << 18;
constexpr std::size_t kQuickTransfersMax = std::size_t{1} << 15;

void Price(const Topology& topology, const ChooserOptions& options, Candidate& candidate) {
  SimulationOptions simulation = options.simulation;
  simulation.mode = SimulationMode::kLockstep;
  simulation.keep_timeline = false;
  const bool is_given = options.simulation.pieces > 1;
  for (std::uint32_t pieces = is_given ? options.simulation.pieces : 1;
       pieces <= std::max(options.pieces_max, simulation.pieces); pieces *= 4) {
    if (pieces > 1 && EdgeCount(candidate.forest) * pieces > kFlowTransfersMax && !is_given) break;
    simulation.pieces = pieces;
    const absl::StatusOr<SimulationResult> result =
        Simulate(topology, candidate.forest, simulation);
    if (!result.ok()) {
      candidate.status = result.status();
      return;
    }
    // At equal time, prefer fewer pieces: each piece is another message.
    if (candidate.seconds == 0 || result->seconds() < candidate.seconds * 0.98) {
      candidate.seconds = result->seconds();
      candidate.pieces = pieces;
    }
    if (is_given) break;
  }
}

Candidate Enter(const Topology& topology, const Planner& planner, const ChooserOptions& options) {
  Candidate candidate;
  candidate.planner = planner.name;
  PlannerOptions planning = options.planner;
  planning.size_bytes = options.simulation.size_bytes;
  absl::StatusOr<Forest> forest = MakePlan(planner, topology, planning);
  if (!forest.ok()) {
    candidate.status = forest.status();
    return candidate;
  }
  candidate.forest = *std::move(forest);
  const absl::StatusOr<VerifyReport> report = Verify(topology, candidate.forest);
  if (!report.ok()) {
    candidate.status = absl::InternalError(fmt::format("the planner produced an invalid plan: {}",
                                                       std::string(report.status().message())));
    return candidate;
  }
  candidate.steps = report->steps;
  candidate.sums_in_switches = SumsInSwitches(topology, candidate.forest);
  std::int64_t busiest = 0;
  for (std::size_t i = 0; i < report->reduce_load.size(); ++i)
    busiest = std::max(busiest, report->reduce_load[i] + report->gather_load[i]);
  candidate.busiest_link_bytes = static_cast<double>(busiest) /
                                 static_cast<double>(candidate.forest.share_unit) *
                                 static_cast<double>(options.simulation.size_bytes);
  Price(topology, options, candidate);
  return candidate;
}

// Also tries more pieces than lockstep chose, while the simulation is fast. Smaller pieces reduce
// waiting, which lockstep does not model.
void SimulateFlows(const Topology& topology, const ChooserOptions& options, Candidate& candidate) {
  SimulationOptions simulation = options.simulation;
  simulation.mode = SimulationMode::kFlow;
  simulation.keep_timeline = false;
  const std::uint32_t first = candidate.pieces;
  for (const std::uint32_t times : {1u, 4u, 16u}) {
    simulation.pieces = first * times;
    const std::size_t transfers = EdgeCount(candidate.forest) * simulation.pieces;
    const bool is_optional = times > 1;
    if (is_optional && (options.simulation.pieces > 1 || simulation.pieces > options.pieces_max ||
                        transfers > kQuickTransfersMax))
      return;
    const absl::StatusOr<SimulationResult> result =
        Simulate(topology, candidate.forest, simulation);
    if (!result.ok()) {
      candidate.status = result.status();
      return;
    }
    if (is_optional && result->seconds() >= candidate.seconds * 0.98) continue;
    candidate.seconds = result->seconds();
    candidate.pieces = simulation.pieces;
    candidate.is_simulated_as_flows = true;
  }
}

// Bytes that all links carried, divided by the bytes that they could carry in that time.
double MeanLinkUse(const Topology& topology, const Candidate& candidate, double size_bytes) {
  double carried = 0, could = 0;
  for (const Tree& tree : candidate.forest.trees) {
    const double share = static_cast<double>(tree.share) /
                         static_cast<double>(candidate.forest.share_unit) * size_bytes;
    for (const auto* edges : {&tree.reduce, &tree.gather})
      for (const Edge& edge : *edges)
        carried += share * static_cast<double>(candidate.forest.paths[edge.path.value].size());
  }
  for (std::uint32_t i = 0; i < topology.links().size(); ++i)
    could += topology.BytesPerSecond(LinkIndex{i}) * candidate.seconds;
  return could > 0 ? carried / could : 0;
}

}  // namespace

absl::StatusOr<Choice> Choose(const Topology& topology, const ChooserOptions& options) {
  Choice choice;
  const std::optional<ExchangeBound> bound = BoundOf(topology);
  if (!bound) return absl::InvalidArgumentError("the bound exceeds 63 bits: round the bandwidths");
  choice.bound = *bound;
  const auto size = static_cast<double>(options.simulation.size_bytes);
  choice.bound_seconds = SecondsFor(topology, bound->members_sum(), size);
  choice.in_switch_bound_seconds = SecondsFor(topology, bound->narrowest.chunk_times, size);
  choice.one_after_the_other_seconds = SecondsFor(topology, bound->one_after_the_other, size);
  double least = 0;
  for (const Planner& planner : Planners()) {
    if (options.progress) options.progress(planner.name);
    choice.candidates.push_back(Enter(topology, planner, options));
    const Candidate& candidate = choice.candidates.back();
    if (candidate.status.ok() && (least == 0 || candidate.seconds < least))
      least = candidate.seconds;
  }
  for (std::size_t i = 0; i < choice.candidates.size(); ++i) {
    Candidate& candidate = choice.candidates[i];
    if (!candidate.status.ok()) continue;
    const std::size_t transfers = EdgeCount(candidate.forest) * candidate.pieces;
    const bool is_worthwhile =
        transfers <= kQuickTransfersMax ||
        (transfers <= kFlowTransfersMax && candidate.seconds <= kHopeless * least);
    if (is_worthwhile && options.simulation.mode == SimulationMode::kFlow) {
      if (options.progress) options.progress(candidate.planner);
      SimulateFlows(topology, options, candidate);
      if (!candidate.status.ok()) continue;
    }
    candidate.of_bound =
        candidate.seconds /
        (candidate.sums_in_switches ? choice.in_switch_bound_seconds : choice.bound_seconds);
    candidate.mean_link_use = MeanLinkUse(topology, candidate, size);
    if (!choice.best || candidate.seconds < choice.candidates[*choice.best].seconds)
      choice.best = i;
  }
  if (!choice.best)
    return absl::FailedPreconditionError("no planner supports this topology at this size");
  return choice;
}

}  // namespace phub::plan
