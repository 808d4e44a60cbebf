// phub's own sketches, for racks:2x2. What was read can be planned with, or the reason is given.
#include "common/plan/planners/planner.h"
#include "common/plan/sketches/sketch_toml.h"
#include "tests/fuzz/plan_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace plan = phub::plan;
  static const plan::Topology racks = *plan::Generate("racks:2x2@2");
  const auto sketch = plan::ParseSketchToml(phub::fuzz::Text(data, size), racks);
  if (!sketch.ok()) {
    PHUB_CHECK(!sketch.status().message().empty());
    return 0;
  }
  plan::PlannerOptions options;
  options.starts = 1;
  options.rules = &sketch->rules;
  const auto forest = plan::MakePlan(*plan::FindPlanner("greedy"), sketch->topology, options);
  if (!forest.ok()) {
    PHUB_CHECK(forest.status().code() != absl::StatusCode::kInternal, "status={}",
               forest.status().ToString());
    return 0;
  }
  PHUB_CHECK(plan::CheckRules(sketch->topology, *forest, sketch->rules).ok());
  phub::fuzz::CheckForest(sketch->topology, forest);
  return 0;
}
