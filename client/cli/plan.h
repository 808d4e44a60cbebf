// Shared by the commands of phubctl plan. All except `probe` work without a daemon: they read
// topologies and plans from short names and files, and compute locally. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/cli.h"
#include "common/plan/forest.h"
#include "common/plan/simulator.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/topology.h"
#include "common/plan/verifier.h"

namespace phub::client::cli {

// The options of all plan commands; each command adds those that it supports.
struct PlanArguments {
  std::string topology;            // "torus:4x4", or a file (.toml, .json)
  std::string plan;                // a plan file
  std::vector<std::string> plans;  // draw, simulate: one or more plan files
  std::string sketch;              // a sketch: TACCL's (.json) or phub's own (.toml)
  std::string profile;             // the profile of the nodes of TACCL's sketch (.json)
  std::string node;                // the kind of its nodes; empty: by the profile
  std::string chunk;               // the size that the profile is for; empty: by its name
  std::string time_unit;
  std::string planner = "best";
  std::string size = "64MiB";
  std::string out;  // a file; empty: standard output
  std::string trace;
  std::string home;
  std::string sum_rate;
  std::string optimizer_rate;
  std::string groups;    // a file of groups
  std::uint32_t mp = 0;  // degrees of parallelism; 0: not given
  std::uint32_t pp = 0;
  std::uint32_t dp = 0;
  std::uint32_t pieces = 0;  // 0: not given
  std::uint32_t starts = 0;
  std::uint64_t seed = 1;
  std::string duration = "500ms";  // of one probe
  std::string bytes;               // limit of one probe
  std::string topology_out;
  std::string plan_out;
  std::string optimizer = "none";
  std::uint32_t ranks = 1;  // in every rack
  std::uint32_t repeat = 2;
  bool least_load = false;
  bool lockstep = false;
  bool reorder = false;
  bool apply = false;  // plan new jobs for the measured topology
  bool show = false;   // show the present topology, measure nothing
};

// Prints the error to standard error; returns the exit code.
int ReportPlanError(const absl::Status& status);

absl::StatusOr<plan::Topology> LoadTopology(const std::string& name_or_file);
// A topology, and the rules that plans on it must follow.
struct PlanNetwork {
  const plan::SketchRules* RulesOrNull() const { return rules ? &*rules : nullptr; }
  plan::Topology topology;
  std::optional<plan::SketchRules> rules;  // absent: none
};
// From --topology, or from --sketch with --profile or --topology.
absl::StatusOr<PlanNetwork> LoadNetwork(const PlanArguments& arguments);
// JSON or MSCCL XML; not verified.
absl::StatusOr<plan::Forest> LoadPlan(const plan::Topology& topology, const std::string& file);
// The plan of arguments.plan, verified against the network and its rules.
struct VerifiedPlan {
  PlanNetwork network;
  plan::Forest forest;
  plan::VerifyReport report;
};
absl::StatusOr<VerifiedPlan> LoadVerifiedPlan(const PlanArguments& arguments);
absl::StatusOr<plan::SimulationOptions> SimulationOf(const PlanArguments& arguments);
// Writes to the file, or to standard output if `file` is empty.
absl::Status WriteOut(const std::string& file, std::string_view text);
absl::StatusOr<std::string> ReadFile(const std::string& file, std::size_t bytes_max);
// The error with the name of the file.
absl::Status InFile(const std::string& file, const absl::Status& status);
template <typename Value>
absl::StatusOr<Value> InFile(const std::string& file, absl::StatusOr<Value> value) {
  if (!value.ok()) return InFile(file, value.status());
  return value;
}

int TopologyShow(const PlanArguments& arguments, const Options& options);
int PlanSketch(const PlanArguments& arguments, const Options& options);
int PlanMake(const PlanArguments& arguments, const Options& options);
int PlanVerify(const PlanArguments& arguments, const Options& options);
int PlanBound(const PlanArguments& arguments, const Options& options);
int PlanSimulate(const PlanArguments& arguments, const Options& options);
int PlanMemory(const PlanArguments& arguments, const Options& options);
int PlanCompare(const PlanArguments& arguments, const Options& options);
int PlanDraw(const PlanArguments& arguments, const Options& options);
int PlanExport(const PlanArguments& arguments, const Options& options);
// Draws several plans (PlanArguments::plans) in one picture.
int DrawPlansTogether(const PlanArguments& arguments);
int PlanGroups(const PlanArguments& arguments, const Options& options);
int PlanImport(const PlanArguments& arguments, const Options& options);
int PlanProbe(const PlanArguments& arguments, const Options& options);

}  // namespace phub::client::cli
