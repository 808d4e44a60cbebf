#include "server/control/racks/rack_plans.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/printable.h"
#include "common/plan/chooser.h"
#include "common/plan/forest_json.h"
#include "common/plan/topology_json.h"
#include "common/plan/verifier.h"
#include "server/control/on_control.h"
#include "server/control/racks/topology_survey.h"

namespace phub::server {
namespace {

// Keys are added after the job is created, so the plan is chosen for a model of typical size.
constexpr std::uint64_t kReferenceBytes = 64 << 20;
constexpr const char* kAuto = "auto";
// Workers wait to join while the plan is chosen. These limits keep searching planners fast; pieces
// are here the chunks that each tree gets.
constexpr std::uint32_t kStartsMax = 8;
constexpr std::uint32_t kPiecesMax = 16;
constexpr std::uint64_t kFlowWorkMax = std::uint64_t{1} << 24;  // of one plan; ranks are waiting

bool IsPlanText(const std::string& asked) { return asked.starts_with("{"); }

absl::Status InPlan(const std::string& job, const absl::Status& status) {
  return absl::Status(status.code() == absl::StatusCode::kInternal
                          ? absl::StatusCode::kInvalidArgument
                          : status.code(),
                      fmt::format("job {}: the plan for its racks is refused: {}", job,
                                  std::string(status.message())));
}

double PredictedSeconds(const plan::Topology& topology, const plan::Forest& forest) {
  plan::SimulationOptions options;
  options.size_bytes = static_cast<std::int64_t>(kReferenceBytes);
  const auto simulated = plan::Simulate(topology, forest, options);
  return simulated.ok() ? simulated->seconds() : 0;
}

// For humans. Still "connecting" if this rack is ready and others are not.
const char* StateName(const RackProtocol& protocol) {
  if (protocol.standing()) return "standing";
  return protocol.opening() ? "opening" : "connecting";
}

plan::PlannerOptions BoundedPlanner() {
  plan::PlannerOptions options;
  options.starts = kStartsMax;
  options.size_bytes = static_cast<std::int64_t>(kReferenceBytes);
  return options;
}

}  // namespace

absl::StatusOr<plan::Forest> MakeForest(const plan::Topology& topology, const std::string& asked,
                                        bool aggregators) {
  if (IsPlanText(asked)) return plan::ParseForestJson(topology, asked);
  if (asked != kAuto) {
    const plan::Planner* const planner = plan::FindPlanner(asked);
    if (planner != nullptr) return plan::MakePlan(*planner, topology, BoundedPlanner());
    std::string names;
    for (const plan::Planner& each : plan::Planners()) names += fmt::format(", {}", each.name);
    return absl::InvalidArgumentError(
        fmt::format("there is no planner {}; choose one of auto{}", Printable(asked), names));
  }
  plan::ChooserOptions options;
  options.simulation.size_bytes = static_cast<std::int64_t>(kReferenceBytes);
  options.planner = BoundedPlanner();
  options.pieces_max = kPiecesMax;
  options.flow_work_max = kFlowWorkMax;
  auto choice = plan::Choose(topology, options);
  if (!choice.ok()) return choice.status();
  const plan::Candidate* best = nullptr;
  for (const plan::Candidate& candidate : choice->candidates) {
    if (!candidate.status.ok() || (best != nullptr && best->seconds <= candidate.seconds)) continue;
    // Only plans that daemons can run: those that sum in a switch need a daemon for it.
    if (exchange::MakeRackPlan(topology, candidate.forest, RackIndex{0}, aggregators).ok()) {
      best = &candidate;
    }
  }
  if (best == nullptr) return absl::InvalidArgumentError("no planner supports the racks' topology");
  return best->forest;
}

// At rack 0: makes the plan that the job's ranks request.
absl::Status RackPlans::ChoosePlan(v1::PeerJob& job) {
  PHUB_ON_CONTROL();
  const plan::Topology& topology = survey_.TopologyToPlanFor();
  const std::string& asked = job.options().plan();
  job.clear_topology();
  job.clear_measured_unix_ns();
  if (const MeasuredTopology* const measured = survey_.measured()) {
    job.set_topology(plan::TopologyToJson(topology));
    job.set_measured_unix_ns(measured->unix_ns);
  }
  job.set_reference_bytes(kReferenceBytes);
  if (std::exchange(made_for_, survey_.topology_number()) != survey_.topology_number()) {
    made_.clear();
  }
  if (const auto made = made_.find(asked); made != made_.end()) {
    job.set_plan(made->second.text);
    job.set_seconds(made->second.seconds);
    return absl::OkStatus();
  }
  const SilenceGuard guard(context_);
  const absl::StatusOr<plan::Forest> forest =
      MakeForest(topology, asked, context_.options.aggregator_count > 0);
  if (!forest.ok()) return InPlan(job.job(), forest.status());
  if (const auto report = plan::Verify(topology, *forest); !report.ok()) {
    return InPlan(job.job(), report.status());
  }
  job.set_plan(plan::ForestToJson(topology, *forest));
  job.set_seconds(PredictedSeconds(topology, *forest));
  if (!IsPlanText(asked)) made_[asked] = {job.plan(), job.seconds()};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RackRun>> RackPlans::MakeRackRun(
    const v1::PeerJob& job, std::shared_ptr<const plan::Topology> planned_for) const {
  PHUB_ON_CONTROL();
  const plan::Topology& topology = *planned_for;
  const absl::StatusOr<plan::Forest> forest = plan::ParseForestJson(topology, job.plan());
  if (!forest.ok()) return InPlan(job.job(), forest.status());
  if (const auto report = plan::Verify(topology, *forest); !report.ok()) {
    return InPlan(job.job(), report.status());
  }
  auto plan = exchange::MakeRackPlan(topology, *forest, RackIndex{context_.options.rack_index},
                                     context_.options.aggregator_count > 0);
  if (!plan.ok()) return InPlan(job.job(), plan.status());
  if (!plan->TakesPart(plan->self)) {
    return InPlan(job.job(), absl::FailedPreconditionError(
                                 "it does not use this aggregator; older versions of phub open "
                                 "jobs at such aggregators, too, so upgrade the daemon of rack 0"));
  }
  auto run = std::make_unique<RackRun>(RackProtocol(
      plan->self, plan->rack_count, static_cast<std::uint32_t>(context_.options.racks_with_ranks()),
      plan->neighbors, plan->participants));
  run->asked = IsPlanText(job.options().plan()) ? "file" : job.options().plan();
  run->described = job;
  run->planner = forest->planner;
  run->topology = std::move(planned_for);
  run->exchange = std::make_shared<JobExchange>();
  run->exchange->plan = *std::move(plan);
  run->racks.resize(run->exchange->plan.rack_count);
  // Aggregators have no ranks for which others could wait, and some take no part.
  for (std::size_t rack = context_.options.racks_with_ranks(); rack < run->racks.size(); ++rack) {
    run->racks[rack].barriers_reached = UINT64_MAX;
    if (!run->TakesPart(RackIndex{static_cast<std::uint32_t>(rack)})) {
      run->racks[rack].batches_added = UINT32_MAX;
    }
  }
  for (PeerRack& rack : run->racks) rack.lanes.resize(context_.cores.size());
  // Ties are decided by the core loop's number within the rack, which also spreads the daemons over
  // the trees.
  const auto own = job.daemon_cores().begin() + static_cast<int>(context_.options.rack_self);
  const std::uint32_t first = std::accumulate(job.daemon_cores().begin(), own, 0u);
  for (std::uint32_t core = 0; core < context_.cores.size(); ++core) {
    run->exchange->choosers.emplace_back(run->exchange->plan, CoreIndex{first + core});
  }
  return run;
}

void RackPlans::DescribeExchange(const Job& job, v1::ExchangeInfo& info) const {
  PHUB_ON_CONTROL();
  const RackRun& run = *job.rack_run;
  info.set_rack(context_.options.rack_index);
  for (const std::string& endpoint : context_.options.racks) info.add_racks(endpoint);
  for (std::uint32_t rack = context_.options.racks_with_ranks();
       rack < context_.options.racks.size(); ++rack) {
    info.add_aggregators(rack);
  }
  info.set_state(StateName(run.protocol));
  info.set_asked(run.asked);
  info.set_planner(run.planner);
  info.set_topology(run.topology->name());
  info.set_trees(static_cast<std::uint32_t>(run.exchange->plan.trees.size()));
  info.set_predicted_seconds(run.described.seconds());
  info.set_reference_bytes(run.described.reference_bytes());
  info.set_first_rank(job.config.rank_base);
  info.set_rank_count(job.config.ranks_of_job);
  info.set_plan(run.described.plan());
  info.set_measured_topology(run.described.topology());
  info.set_measured_unix_ns(run.described.measured_unix_ns());
  DescribeMeasures(run, info);
}

}  // namespace phub::server
