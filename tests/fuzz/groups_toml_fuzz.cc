// Files of groups, for fattree:2x3 with two spines that sum. What was read can be compiled, or the
// reason is given.
#include "common/plan/groups/compiler.h"
#include "tests/fuzz/plan_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace plan = phub::plan;
  static const plan::Topology network = *plan::Generate("fattree:2x3,spines=2,aggregate");
  const auto groups = plan::ParseGroupsToml(phub::fuzz::Text(data, size), network, 1000);
  if (!groups.ok()) {
    PHUB_CHECK(!groups.status().message().empty());
    return 0;
  }
  const auto compiled = plan::CompileGroups(network, *groups, {.pieces = 2});
  if (!compiled.ok()) {
    PHUB_CHECK(compiled.status().code() != absl::StatusCode::kInternal, "status={}",
               compiled.status().ToString());
    return 0;
  }
  for (const plan::CompiledGroup& group : compiled->groups)
    phub::fuzz::CheckForest(network, group.forest);
  for (const plan::CompiledPhase& phase : compiled->phases)
    PHUB_CHECK(phase.load <= std::max(phase.bound, phase.members_load) &&
               phase.pairs >= phase.pairs_least);
  return 0;
}
