#include "common/plan/chooser.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/verifier.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// The limit of plans that cannot win: less than a second or two.
constexpr std::uint64_t kCheapWorkMax = std::uint64_t{1} << 25;
// Plans with more edges are made again when they are needed, instead of being kept in memory. They
// are not simulated if they cannot win.
constexpr std::size_t kKeptEdgesMax = std::size_t{1} << 20;
// A plan that is faster by less than this factor does not justify more simulations or pieces.
constexpr double kFaster = 0.98;
constexpr double kCloseToBest = 0.995;

void PriceInLockstep(const Topology& topology, const ChooserOptions& options,
                     Candidate& candidate) {
  std::vector<std::uint32_t> pieces{options.simulation.pieces};
  if (pieces[0] <= 1)
    for (std::uint32_t more = 4; more <= options.pieces_max; more *= 4) pieces.push_back(more);
  const auto seconds = LockstepSeconds(topology, candidate.forest, options.simulation, pieces);
  if (!seconds.ok()) {
    candidate.status = seconds.status();
    return;
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    // At equal time, prefer fewer pieces: each piece is another message.
    if (i > 0 && (*seconds)[i] >= candidate.seconds * kFaster) continue;
    candidate.seconds = (*seconds)[i];
    candidate.pieces = pieces[i];
  }
}

PlannerOptions PlanningFor(const ChooserOptions& options) {
  PlannerOptions planning = options.planner;
  planning.size_bytes = options.simulation.size_bytes;
  return planning;
}

// Bytes that all links carry, divided by the bytes that they can carry in one second.
double MeanLinkSeconds(const Topology& topology, const VerifyReport& report, double share_bytes) {
  double carried = 0, could = 0;
  for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
    carried += share_bytes * static_cast<double>(report.reduce_load[i] + report.gather_load[i]);
    could += topology.BytesPerSecond(LinkIndex{i});
  }
  return could > 0 ? carried / could : 0;
}

// A candidate and what the later steps need to know about it.
struct Entrant {
  Candidate candidate;
  const Planner* planner = nullptr;
  std::size_t edges = 0;
  double mean_link_seconds = 0;
};

Entrant Enter(const Topology& topology, const Planner& planner, const ChooserOptions& options) {
  Entrant entrant;
  entrant.planner = &planner;
  Candidate& candidate = entrant.candidate;
  candidate.planner = planner.name;
  absl::StatusOr<Forest> forest = MakePlan(planner, topology, PlanningFor(options));
  if (!forest.ok()) {
    candidate.status = forest.status();
    return entrant;
  }
  candidate.forest = *std::move(forest);
  const absl::StatusOr<VerifyReport> report = Verify(topology, candidate.forest);
  if (!report.ok()) {
    candidate.status = absl::InternalError(fmt::format("the planner produced an invalid plan: {}",
                                                       std::string(report.status().message())));
    return entrant;
  }
  candidate.steps = report->steps;
  candidate.sums_in_switches = SumsInSwitches(topology, candidate.forest);
  std::int64_t busiest = 0;
  for (std::size_t i = 0; i < report->reduce_load.size(); ++i)
    busiest = std::max(busiest, report->reduce_load[i] + report->gather_load[i]);
  const auto size = static_cast<double>(options.simulation.size_bytes);
  const double share_bytes = size / static_cast<double>(candidate.forest.share_unit);
  candidate.busiest_link_bytes = static_cast<double>(busiest) * share_bytes;
  candidate.busiest_link_seconds =
      report->total_time.ToDouble() * size / static_cast<double>(topology.unit_bytes_per_s());
  entrant.mean_link_seconds = MeanLinkSeconds(topology, *report, share_bytes);
  entrant.edges = EdgeCount(candidate.forest);
  PriceInLockstep(topology, options, candidate);
  if (entrant.edges > kKeptEdgesMax) candidate.forest = {};
  return entrant;
}

// Simulates a plan as flows with several numbers of pieces. Smaller pieces reduce waiting, which
// lockstep does not model.
class Tuner {
 public:
  // `rival_seconds`: the time of the best other plan found so far; 0: none.
  Tuner(const Topology& topology, const ChooserOptions& options, const Forest& forest,
        Entrant& entrant, double rival_seconds)
      : topology_(topology), options_(options), forest_(forest), entrant_(entrant) {
    const bool may_win =
        rival_seconds == 0 || entrant.candidate.busiest_link_seconds < rival_seconds * kCloseToBest;
    left_ = options.flow_work_max;
    if (!may_win) left_ = std::min(left_, kCheapWorkMax);
  }

  void Tune() {
    Candidate& candidate = entrant_.candidate;
    if (options_.simulation.pieces > 1) {
      Improves(candidate.pieces, 1);
      return;
    }
    const double lockstep_seconds = candidate.seconds;
    const std::uint32_t lockstep_pieces = candidate.pieces;
    std::uint32_t pieces = lockstep_pieces;
    while (pieces > 0 && !Improves(pieces, 1)) pieces /= 4;
    if (!candidate.is_simulated_as_flows) return;
    if (pieces < lockstep_pieces && candidate.seconds > lockstep_seconds) {
      // More pieces are faster, but too many to simulate.
      candidate.seconds = lockstep_seconds;
      candidate.pieces = lockstep_pieces;
      candidate.is_simulated_as_flows = false;
      return;
    }
    for (const std::uint32_t times : {4u, 16u, 64u}) Improves(pieces * times, kFaster);
    while (candidate.pieces <= pieces && Improves(candidate.pieces / 4, 1)) {
    }
    const std::uint32_t best = candidate.pieces;
    if (!Improves(best * 2, kFaster)) Improves(best / 2, 1);
  }

 private:
  bool IsAllowed(std::uint32_t pieces) const {
    const std::size_t transfers = entrant_.edges * pieces;
    return pieces > 0 && pieces <= std::max(options_.pieces_max, options_.simulation.pieces) &&
           transfers <= kTransfersMax && transfers < left_;
  }

  // Simulates, and takes this number of pieces if the time is at most `factor` of the present one.
  bool Improves(std::uint32_t pieces, double factor) {
    Candidate& candidate = entrant_.candidate;
    if (!candidate.status.ok() || !IsAllowed(pieces)) return false;
    SimulationOptions simulation = options_.simulation;
    simulation.keep_timeline = false;
    simulation.pieces = pieces;
    simulation.work_max = left_ / 2;  // leaves some for fewer pieces
    const absl::StatusOr<SimulationResult> result = Simulate(topology_, forest_, simulation);
    left_ -= result.ok() ? result->work : simulation.work_max;
    if (absl::IsResourceExhausted(result.status())) return false;
    if (!result.ok()) {
      candidate.status = result.status();
      return false;
    }
    if (candidate.is_simulated_as_flows && result->seconds() > candidate.seconds * factor)
      return false;
    candidate.seconds = result->seconds();
    candidate.pieces = pieces;
    candidate.is_simulated_as_flows = true;
    return true;
  }

  const Topology& topology_;
  const ChooserOptions& options_;
  const Forest& forest_;
  Entrant& entrant_;
  std::uint64_t left_ = 0;  // work
};

// Ensures that the forest of a large plan is in memory.
absl::Status EnsureForest(const Topology& topology, const ChooserOptions& options,
                          Entrant& entrant) {
  if (!entrant.candidate.forest.trees.empty()) return absl::OkStatus();
  absl::StatusOr<Forest> forest = MakePlan(*entrant.planner, topology, PlanningFor(options));
  if (!forest.ok()) return forest.status();
  entrant.candidate.forest = *std::move(forest);
  return absl::OkStatus();
}

// Most promising plans first: they show early which of the others cannot win.
void SimulateAsFlows(const Topology& topology, const ChooserOptions& options,
                     std::vector<Entrant>& entrants) {
  std::vector<Entrant*> order;
  for (Entrant& entrant : entrants)
    if (entrant.candidate.status.ok()) order.push_back(&entrant);
  std::stable_sort(order.begin(), order.end(), [](const Entrant* a, const Entrant* b) {
    return a->candidate.seconds < b->candidate.seconds;
  });
  double best = 0;
  for (Entrant* entrant : order) {
    Candidate& candidate = entrant->candidate;
    if (options.progress) options.progress(candidate.planner);
    const bool is_hopeless = best > 0 && entrant->edges > kKeptEdgesMax &&
                             candidate.busiest_link_seconds >= best * kCloseToBest;
    if (is_hopeless) continue;
    candidate.status = EnsureForest(topology, options, *entrant);
    if (candidate.status.ok()) Tuner(topology, options, candidate.forest, *entrant, best).Tune();
    if (entrant->edges > kKeptEdgesMax) candidate.forest = {};
    if (candidate.status.ok() && candidate.is_simulated_as_flows &&
        (best == 0 || candidate.seconds < best))
      best = candidate.seconds;
  }
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
  std::vector<Entrant> entrants;
  for (const Planner& planner : Planners()) {
    if (options.progress) options.progress(planner.name);
    entrants.push_back(Enter(topology, planner, options));
  }
  if (options.simulation.mode == SimulationMode::kFlow)
    SimulateAsFlows(topology, options, entrants);
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    Candidate& candidate = entrants[i].candidate;
    if (!candidate.status.ok()) continue;
    candidate.of_bound =
        candidate.seconds /
        (candidate.sums_in_switches ? choice.in_switch_bound_seconds : choice.bound_seconds);
    candidate.mean_link_use = entrants[i].mean_link_seconds / candidate.seconds;
    if (!choice.best || candidate.seconds < entrants[*choice.best].candidate.seconds)
      choice.best = i;
  }
  if (!choice.best)
    return absl::FailedPreconditionError("no planner supports this topology at this size");
  if (absl::Status status = EnsureForest(topology, options, entrants[*choice.best]); !status.ok())
    return status;
  for (Entrant& entrant : entrants) choice.candidates.push_back(std::move(entrant.candidate));
  return choice;
}

}  // namespace phub::plan
