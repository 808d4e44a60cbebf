// Properties of the readers of topologies and plans. Small inputs can name large things, so a
// result is used further only if it is small.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/plan/forest.h"
#include "common/plan/forest_json.h"
#include "common/plan/generators.h"
#include "common/plan/simulator.h"
#include "common/plan/topology.h"
#include "common/plan/topology_json.h"
#include "common/plan/verifier.h"
#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {

inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? std::string_view()
                   : std::string_view(reinterpret_cast<const char*>(data), size);
}

// An error has a message. An accepted topology can be written, and reads back to the same value.
inline void CheckTopology(const absl::StatusOr<plan::Topology>& topology) {
  if (!topology.ok()) {
    PHUB_CHECK(!topology.status().message().empty());
    return;
  }
  if (topology->links().size() > 1000) return;
  const std::string text = plan::TopologyToJson(*topology);
  const absl::StatusOr<plan::Topology> again = plan::ParseTopologyJson(text);
  // Names that are not UTF-8 are written with replacements, and may then be equal.
  if (again.ok()) PHUB_CHECK(plan::TopologyToJson(*again) == text);
}

// A verified plan can be simulated. There are no other requirements for a plan that was read.
inline void CheckForest(const plan::Topology& topology,
                        const absl::StatusOr<plan::Forest>& forest) {
  if (!forest.ok()) {
    PHUB_CHECK(!forest.status().message().empty());
    return;
  }
  const absl::StatusOr<plan::VerifyReport> report = plan::Verify(topology, *forest);
  if (!report.ok()) return;
  PHUB_CHECK(report->steps == plan::StepCount(*forest));
  if (report->steps > 10'000) return;
  for (const plan::SimulationMode mode :
       {plan::SimulationMode::kFlow, plan::SimulationMode::kLockstep}) {
    const auto result = plan::Simulate(topology, *forest, {.size_bytes = 1000, .mode = mode});
    PHUB_CHECK(result.ok(), "status={}", result.status().ToString());
    PHUB_CHECK(result->time_ps > 0);
  }
  const absl::StatusOr<plan::Forest> again = plan::ParseForestJson(
      topology, plan::ForestToJson(topology, *forest), plan::PlanScope::kGroupsToo);
  PHUB_CHECK(again.ok(), "status={}", again.status().ToString());
  PHUB_CHECK(plan::Verify(topology, *again).ok());
}

inline const plan::Topology& SmallTopology() {
  static const plan::Topology topology = *plan::Generate("ring:3");
  return topology;
}

}  // namespace phub::fuzz
