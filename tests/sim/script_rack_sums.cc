// The order of the sums of a simulated job that spans racks, for its keys and those of its groups.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "common/plan/forest_json.h"
#include "tests/sim/script.h"

namespace phub::sim {
void DrawSums(JobScript& job, const RackPlanScript& racks) {
  oracle::SummedJob summed{
      .name = job.name, .core_count = racks.core_count, .chunk_bytes = job.chunk_bytes, .keys = {}};
  for (const KeyScript& key : job.keys) {
    if (key.group == kNoGroup)
      summed.keys.push_back({numeric::ElementType::kF32, key.element_count, key.batch});
  }
  job.sums = oracle::SumsOf(*racks.topology, *racks.forest, summed, racks.order);
  job.sums.resize(job.keys.size());
}

void SetGroupPlan(JobScript& job, std::uint32_t group, const RackPlanScript& racks,
                  const std::string& plan) {
  const auto forest = plan::ParseForestJson(*racks.topology, plan, plan::PlanScope::kGroupsToo);
  PHUB_CHECK(forest.ok(), "job={} group={}", job.name, group);
  const auto key = static_cast<std::uint32_t>(
      std::ranges::find(job.keys, group, &KeyScript::group) - job.keys.begin());
  const oracle::SummedJob alone{
      .name = fmt::format("{}/{}", job.name, job.groups[group].name),
      .core_count = racks.core_count,
      .chunk_bytes = job.chunk_bytes,
      .keys = {{numeric::ElementType::kF32, job.keys[key].element_count, 0}}};
  job.sums[key] = oracle::SumsOf(*racks.topology, *forest, alone, racks.order)[0];
  ComputeExpectedOf(job, key);
}

}  // namespace phub::sim
