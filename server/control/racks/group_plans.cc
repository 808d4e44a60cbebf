// Plans of groups that have members in several racks.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/forest_json.h"
#include "common/plan/planners/planner.h"
#include "common/plan/verifier.h"
#include "server/control/racks/rack_plans.h"

namespace phub::server {
namespace {

constexpr std::int64_t kGroupBytes = std::int64_t{64} << 20;  // of every plan
constexpr std::uint32_t kOrdersMax = 8;
// The best plan for the racks of a group may not be the best one next to others.
constexpr std::array kAlternatives = {"ring", "sharded-star", "double-binary-tree"};
constexpr const char* kWithAggregators = "in-switch";

std::vector<plan::NodeIndex> MembersIn(const plan::Topology& topology, std::uint64_t racks) {
  std::vector<plan::NodeIndex> members;
  for (std::uint32_t rack = 0; rack < topology.members().size(); ++rack)
    if ((racks >> rack & 1) != 0) members.push_back(topology.members()[rack]);
  return members;
}

// Fails if that planner does not support the part, so that the next one is tried.
plan::MakesForest With(const std::string& planner, bool aggregators) {
  return [=](const plan::Topology& part) -> absl::StatusOr<plan::Forest> {
    return MakeForest(part, planner, aggregators);
  };
}

// The best plan is searched once for each group; other orders of its racks get the same planner.
plan::MakesForest AsTheJob(const std::string& asked, bool aggregators) {
  using Members = std::set<std::string>;
  const auto best = std::make_shared<std::map<Members, std::string>>();
  return [=](const plan::Topology& part) -> absl::StatusOr<plan::Forest> {
    const plan::Planner* const planner = plan::FindPlanner(asked);
    if (planner != nullptr && planner->applies(part).ok())
      return MakeForest(part, asked, aggregators);
    Members members;
    for (const plan::NodeIndex member : part.members()) members.insert(part.node(member).name);
    std::string& known = (*best)[members];
    auto forest = MakeForest(part, known.empty() ? "auto" : known, aggregators);
    if (forest.ok()) known = forest->planner;
    return forest;
  };
}

// Other aggregators do not have the job.
std::uint64_t AggregatorsIn(const RackRun& run) {
  const std::size_t members = run.topology->members().size();
  return members < kRacksMax ? run.exchange->plan.participants >> members << members : 0;
}

std::vector<plan::NodeIndex> NodesOf(const plan::Topology& topology, std::uint64_t racks) {
  std::vector<plan::NodeIndex> nodes;
  for (; racks != 0; racks &= racks - 1)
    nodes.push_back(
        exchange::NodeOf(topology, RackIndex{static_cast<std::uint32_t>(std::countr_zero(racks))}));
  return nodes;
}

}  // namespace

GroupPlanning StartGroupPlanning(const RackRun& run, std::vector<std::uint64_t> racks) {
  return {.topology = run.topology,
          .planner = run.asked,
          .racks = std::move(racks),
          .aggregators = AggregatorsIn(run),
          .job_plan = run.described.plan(),
          .groups = run.group_times};
}

absl::StatusOr<std::vector<GroupPlanText>> PlanForGroups(const GroupPlanning& planning) {
  const plan::Topology& topology = *planning.topology;
  const auto of_job = plan::ParseForestJson(topology, planning.job_plan);
  if (!of_job.ok()) return of_job.status();
  plan::LinkTimes others = plan::LinkTimesOf(topology, *of_job);
  plan::AddTo(others, planning.groups);
  const bool aggregate = planning.aggregators != 0;
  std::vector<plan::MakesForest> makers = {AsTheJob(planning.planner, aggregate)};
  if (plan::FindPlanner(planning.planner) == nullptr) {
    for (const char* const each : kAlternatives) makers.push_back(With(each, aggregate));
    if (aggregate) makers.push_back(With(kWithAggregators, aggregate));
  }
  const std::vector<plan::NodeIndex> aggregators = NodesOf(topology, planning.aggregators);
  std::vector<std::vector<plan::NodeIndex>> groups;
  for (const std::uint64_t racks : planning.racks) groups.push_back(MembersIn(topology, racks));
  auto plans = plan::PlanAround(topology, groups, others,
                                {.makers = makers,
                                 .size_bytes = kGroupBytes,
                                 .orders = kOrdersMax,
                                 .aggregators = aggregators});
  if (!plans.ok()) return plans.status();
  std::vector<GroupPlanText> texts;
  for (plan::GroupPlan& each : *plans) {
    const auto made = exchange::MakeRackPlan(topology, each.forest, RackIndex{0}, aggregate);
    if (!made.ok()) return made.status();
    texts.push_back({.text = plan::ForestToJson(topology, each.forest),
                     .participants = made->participants,
                     .times = std::move(each.times)});
  }
  return texts;
}

GroupPlanReading StartReadingGroupPlan(const RackRun& run, std::uint64_t racks) {
  return {.topology = run.topology,
          .racks = racks,
          .aggregators = AggregatorsIn(run),
          .self = run.exchange->plan.self};
}

absl::StatusOr<std::shared_ptr<const exchange::RackPlan>> ReadGroupPlan(
    const GroupPlanReading& reading, const std::string& text) {
  const plan::Topology& topology = *reading.topology;
  const auto forest = plan::ParseForestJson(topology, text, plan::PlanScope::kGroupsToo);
  if (!forest.ok()) return forest.status();
  if (const auto report = plan::Verify(topology, *forest); !report.ok()) return report.status();
  if (!std::ranges::equal(plan::MembersOf(topology, *forest), MembersIn(topology, reading.racks)))
    return absl::InvalidArgumentError("it is not for the racks of the group's members");
  auto made = exchange::MakeRackPlan(topology, *forest, reading.self, reading.aggregators != 0);
  if (!made.ok()) return made.status();
  if ((made->participants & ~(reading.racks | reading.aggregators)) != 0)
    return absl::InvalidArgumentError("it uses aggregators that do not have the job");
  if (!made->TakesPart(made->self))
    return absl::InvalidArgumentError("it does not use this aggregator");
  return std::make_shared<const exchange::RackPlan>(*std::move(made));
}

}  // namespace phub::server
