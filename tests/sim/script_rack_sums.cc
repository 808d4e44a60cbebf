// The order of the sums of a simulated job that spans racks, for its keys and those of its groups.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/plan/planners/planner.h"
#include "common/plan/subset.h"
#include "server/control/racks/rack_run.h"
#include "tests/sim/script.h"

namespace phub::sim {
namespace {

// The plan that rack 0 makes for a group: by the job's planner, if that can.
const plan::Forest& ForestOfGroup(const RackPlanScript& racks,
                                  const std::vector<std::uint32_t>& of_group) {
  static std::map<std::string, plan::Forest> made;
  const auto [found, is_new] = made.try_emplace(
      fmt::format("{} {} {}", racks.topology->name(), racks.plan, fmt::join(of_group, ",")));
  if (!is_new) return found->second;
  std::vector<plan::NodeIndex> members;
  for (const std::uint32_t rack : of_group) members.push_back(racks.topology->members()[rack]);
  auto forest = plan::PlanForMembers(*racks.topology, members, [&](const plan::Topology& part) {
    const plan::Planner* const planner = plan::FindPlanner(racks.plan);
    const bool suits = planner != nullptr && planner->applies(part).ok();
    return server::MakeForest(part, suits ? racks.plan : "auto", /*aggregators=*/false);
  });
  PHUB_CHECK(forest.ok(), "topology={} plan={}", racks.topology->name(), racks.plan);
  return found->second = *std::move(forest);
}

}  // namespace

void DrawSums(JobScript& job, const RackPlanScript& racks) {
  oracle::SummedJob summed{
      .name = job.name, .core_count = racks.core_count, .chunk_bytes = job.chunk_bytes, .keys = {}};
  for (const KeyScript& key : job.keys) {
    if (key.group == kNoGroup)
      summed.keys.push_back({numeric::ElementType::kF32, key.element_count, key.batch});
  }
  job.sums = oracle::SumsOf(*racks.topology, *racks.forest, summed, racks.order);
  for (std::size_t i = job.sums.size(); i < job.keys.size(); ++i) {
    const KeyScript& key = job.keys[i];
    job.sums.emplace_back();
    const std::vector<std::uint32_t> of_group = RacksOf(job, key.group);
    if (of_group.size() == 1) continue;
    oracle::SummedJob alone = summed;
    alone.name = fmt::format("{}/{}", job.name, job.groups[key.group].name);
    alone.keys = {{numeric::ElementType::kF32, key.element_count, 0}};
    job.sums.back() =
        oracle::SumsOf(*racks.topology, ForestOfGroup(racks, of_group), alone, racks.order)[0];
  }
}

}  // namespace phub::sim
