// Clusters of several racks: the daemons in each, jobs that span racks, and jobs of one rack.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "server/control/racks/rack_run.h"
#include "server/core/exchange/rack_plan.h"
#include "tests/sim/cluster_state.h"

namespace phub::sim {
namespace {

constexpr std::uint64_t kRacksMax = 8;
constexpr std::uint32_t kPlanesRacksMax = 6;  // several daemons per rack cost time

constexpr std::uint64_t kAggregatorsOneIn = 3;  // among topologies with switches
constexpr std::uint64_t kMeasuredOneIn = 4;     // among topologies without aggregators

// The planners whose plans daemons use with this topology.
const std::vector<std::string>& PlannersOf(const std::string& name) {
  static std::map<std::string, std::vector<std::string>> found;
  std::vector<std::string>& planners = found[name];
  if (!planners.empty()) return planners;
  const auto topology = plan::Generate(name);
  PHUB_CHECK(topology.ok(), "topology={}", name);
  for (const plan::Planner& planner : plan::Planners()) {
    if (planner.applies(*topology).ok()) planners.emplace_back(planner.name);
  }
  return planners;
}

// The plan with which rack 0 opens the job.
const plan::Forest& ForestOf(const std::string& name, const plan::Topology& topology,
                             const std::string& asked) {
  static std::map<std::pair<std::string, std::string>, plan::Forest> made;
  const auto [found, is_new] = made.try_emplace({name, asked});
  if (!is_new) return found->second;
  auto forest =
      server::MakeForest(topology, asked, server::exchange::AggregatorCount(topology) > 0);
  PHUB_CHECK(forest.ok(), "topology={} plan={}", name, asked);
  return found->second = *std::move(forest);
}

std::string DrawTopology(SeededRandom& random, std::uint64_t racks) {
  if (racks % 2 == 0 && random.Chance(1, 4)) return fmt::format("racks:2x{}@4", racks / 2);
  return fmt::format("{}:{}", racks > 2 && random.Chance(1, 3) ? "ring" : "switch", racks);
}

// Sometimes adds daemons for the topology's switches.
std::string DrawAggregators(SeededRandom& random, const std::string& topology) {
  const bool has_switches = !topology.starts_with("ring");
  return has_switches && random.Chance(1, kAggregatorsOneIn) ? topology + ",aggregate" : topology;
}

Fate DrawRackFate(SeededRandom& random) {
  constexpr Fate kFates[] = {
      Fate::kWorkerDies,  Fate::kWorkerSilent,          Fate::kLaneBreaks, Fate::kKeysDiffer,
      Fate::kRootsDiffer, Fate::kHyperParametersDiffer, Fate::kDaemonDies, Fate::kDaemonSilent,
      Fate::kRacksCut,    Fate::kNeverReturns,
  };
  return random.Chance(1, 2) ? Fate::kCompletes : kFates[random.Below(std::size(kFates))];
}

}  // namespace

// Daemons have the same number of core loops in every rack where the job's chunks may be, because
// core loops with equal numbers exchange with each other.
void Cluster::BuildRacks() {
  const std::uint64_t count = 2 + random_.Below(random_.Chance(1, 4) ? kRacksMax - 1 : 3);
  racks_with_ranks_ = static_cast<std::uint32_t>(count);
  topology_ = DrawAggregators(random_, DrawTopology(random_, count));
  SimDaemonOptions options;
  auto topology = plan::Generate(topology_);
  PHUB_CHECK(topology.ok(), "topology={}", topology_);
  options.aggregators = server::exchange::AggregatorCount(*topology);
  const std::uint32_t racks = racks_with_ranks_ + options.aggregators;
  if (random_.Chance(1, 2)) per_rack_ = static_cast<std::uint32_t>(2 + random_.Below(2));
  if (racks > kPlanesRacksMax) per_rack_ = 1;
  rack_topology_ = std::make_shared<const plan::Topology>(*std::move(topology));
  options.topology = rack_topology_;
  options.topology_is_measured = options.aggregators == 0 && random_.Chance(1, kMeasuredOneIn);
  topology_is_measured_ = options.topology_is_measured;
  std::vector<std::uint32_t> core_counts;
  for (std::uint32_t d = 0; d < per_rack_; ++d) {
    core_counts.push_back(static_cast<std::uint32_t>(1 + random_.Below(3)));
  }
  options.shm.ring_records = wire::kRingRecordsMin << random_.Below(6);
  options.shm.arena_bytes = wire::kArenaBytesMin;
  options.shm.send_queue = network_.options().limits.send_queue;
  options.shm.received_lent = network_.options().limits.received_lent;
  const auto endpoint = [&](std::uint32_t rack, std::uint32_t daemon) {
    return fmt::format("{}{}:{}", rack < count ? "rack" : "aggregator", rack, 7700 + daemon);
  };
  for (std::uint32_t i = 0; i < racks * per_rack_; ++i) {
    options.rack = i / per_rack_;
    options.position = i % per_rack_;
    options.core_count = core_counts[options.position];
    options.racks.clear();
    for (std::uint32_t r = 0; r < racks; ++r) {
      options.racks.push_back(endpoint(r, options.position));
    }
    options.rack_endpoints.clear();
    for (std::uint32_t d = 0; d < per_rack_; ++d) {
      options.rack_endpoints.push_back(endpoint(options.rack, d));
    }
    options.first_node = i * kNodesPerDaemon;
    options.turn = DrawTurnBudget(random_);
    options.shares_memory = random_.Chance(1, 2);
    rack_.push_back(std::make_unique<SimDaemon>(network_, control_random_, options));
  }
  for (std::uint32_t i = 0; i < rack_.size(); ++i) {
    peer_networks_.push_back(
        std::make_unique<SimPeerNetwork>(network_, random_, rack_, i, per_rack_));
    rack_[i]->control().SetPeerNetwork(*peer_networks_.back());
  }
  // Groups are in clusters with one daemon in each rack.
  peer_networks_.front()->SetPlanNote(
      [this](std::uint64_t incarnation, const v1::GroupSpec& group, const std::string& plan) {
        const std::vector<std::uint32_t> ranks(group.ranks().begin(), group.ranks().end());
        std::string& known = group_plans_[{incarnation, group.name(), ranks}];
        known = plan;
      });
}

void Cluster::DrawRackJobs() {
  Fate fate = DrawRackFate(random_);
  const std::uint32_t racks = racks_with_ranks_;
  const auto draw_plan = [&]() -> std::string {
    if (random_.Chance(1, 16)) return "auto";
    const std::vector<std::string>& planners = PlannersOf(topology_);
    return planners[random_.Below(planners.size())];
  };
  RackPlanScript script;
  script.racks = racks;
  script.topology = rack_topology_.get();
  script.order = order_;
  script.one_daemon = per_rack_ == 1;
  for (std::uint32_t d = 0; d < per_rack_; ++d) script.core_count += rack_[d]->core_count();
  const std::uint64_t job_count = 1 + random_.Below(2);
  for (std::uint64_t i = 0; i < job_count; ++i) {
    const std::string name = fmt::format("job{}", i);
    // The other layout tests faults of jobs of one rack.
    const bool spans = i == 0 || random_.Chance(1, 2);
    const bool all_suffer = fate == Fate::kDaemonDies || fate == Fate::kDaemonSilent ||
                            (fate == Fate::kRacksCut && spans);
    const Fate own = i == 0 || all_suffer ? fate : Fate::kCompletes;
    if (spans) {
      script.plan = draw_plan();
      script.forest = &ForestOf(topology_, *rack_topology_, script.plan);
      AddJob(DrawRackJob(random_, name, own, script), 0);
      LearnPlans(*jobs_.back(), script);
    } else {
      AddJob(DrawJob(random_, name, own), static_cast<std::uint32_t>(random_.Below(racks)));
    }
  }
}

// The oracle knows the order of a group's sums when rack 0 has planned them.
void Cluster::LearnPlans(Job& job, const RackPlanScript& racks) {
  job.learn_plan = [this, &job, racks](Incarnation incarnation, std::uint32_t group) {
    const std::uint32_t key = static_cast<std::uint32_t>(
        std::ranges::find(job.script.keys, group, &KeyScript::group) - job.script.keys.begin());
    if (RacksOf(job.script, group).size() == 1 || !job.script.sums[key].empty()) return;
    const GroupScript& members = job.script.groups[group];
    const auto plan = group_plans_.find({incarnation.value, members.name, members.ranks});
    PHUB_CHECK(plan != group_plans_.end(), "group={}", members.name);
    SetGroupPlan(job.script, group, racks, plan->second);
  };
}

// While the first job's culprit trains, cuts all lanes between a daemon of its rack and a daemon
// that it exchanges with.
void Cluster::CutRacks() {
  const Job& job = *jobs_.front();
  const SimWorker& witness = job.seats[job.script.culprit].worker();
  if (witness.state() != SimWorker::State::kTraining) return;
  // A worker that joins a job after its failure starts a new run, and waits there for ranks that
  // never come.
  for (const auto& each : jobs_) {
    if (each->script.racks > 1 && each->joined_count < each->script.world_size) return;
  }
  if (witness.progress() + 1 < job.script.culprit_iteration || !random_.Chance(1, 4)) return;
  const std::uint32_t rack = job.script.culprit / (job.script.world_size / job.script.racks);
  const auto plane = static_cast<std::uint32_t>(random_.Below(per_rack_));
  const std::uint32_t own = rack * per_rack_ + plane;
  for (std::uint32_t other = plane; other < rack_.size(); other += per_rack_) {
    if (other == own) continue;
    bool found = false;
    for (std::uint32_t core = 0; core < rack_[own]->core_count(); ++core) {
      found |= network_.ResetBetween(rack_[own]->node(core), rack_[other]->node(core));
    }
    if (!found) continue;
    cut_ = {own, other};
    racks_cut_at_ = network_.clock().Now();
    return;
  }
}

}  // namespace phub::sim
