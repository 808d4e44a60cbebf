// The interface of planners, and their list. A planner is a pure function from a topology to a
// forest. Equal options give equal forests, for any number of threads.
//
// To add a planner, add its file here and its line to registry.cc (and CMakeLists.txt). The
// chooser, the command line and the property tests use that list.
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

struct SketchRules;

struct PlannerOptions {
  std::uint64_t seed = 1;
  // Random starts of planners that search. 0: as many as take about a second.
  std::uint32_t starts = 0;
  // The size of the data, for planners that weigh latency against bandwidth.
  std::int64_t size_bytes = std::int64_t{1} << 20;
  // Called from time to time with the progress of a long search, by one thread at a time. May be
  // empty.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
  // Rules of a sketch (common/plan/sketches/sketch_rules.h); null: none.
  const SketchRules* rules = nullptr;
};

struct Planner {
  std::string_view name;     // "double-binary-tree"
  std::string_view summary;  // one line, for display
  // OK, or why the planner does not support the topology. Much cheaper than `plan`.
  absl::Status (*applies)(const Topology& topology);
  absl::StatusOr<Forest> (*plan)(const Topology& topology, const PlannerOptions& options);
  bool follows_sketches = false;  // whether `plan` follows PlannerOptions::rules
};

std::span<const Planner> Planners();
const Planner* FindPlanner(std::string_view name);  // null if no planner has it
// Calls `applies`, then `plan`. With rules, planners that do not follow them are refused, and the
// plan is checked.
absl::StatusOr<Forest> MakePlan(const Planner& planner, const Topology& topology,
                                const PlannerOptions& options);

}  // namespace phub::plan
