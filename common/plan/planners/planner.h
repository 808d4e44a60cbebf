// What a planner is, and the list of all. A planner is a pure function from a topology to a forest;
// equal options give the equal forest, whatever the number of threads.
//
// To add a planner, write its file here and its line in registry.cc (and CMakeLists.txt): the
// chooser, the command line and the property tests take it from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct PlannerOptions {
  std::uint64_t seed = 1;
  // How many random starts a planner that searches makes; 0: as many as take about a second.
  std::uint32_t starts = 0;
  // Told now and then how far a long search is, from one thread at a time; may be empty.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

struct Planner {
  std::string_view name;     // "double-binary-tree"
  std::string_view summary;  // one line, for people
  // OK, or the reason why it cannot plan for this topology. Cheap next to `plan`.
  absl::Status (*applies)(const Topology& topology);
  absl::StatusOr<Forest> (*plan)(const Topology& topology, const PlannerOptions& options);
};

std::span<const Planner> Planners();
const Planner* FindPlanner(std::string_view name);  // null if there is none
// Checks `applies` first.
absl::StatusOr<Forest> MakePlan(const Planner& planner, const Topology& topology,
                                const PlannerOptions& options);

}  // namespace phub::plan
