// phubctl plan sketch, which expands TACCL's sketches to topologies, and the option --sketch.
#include "client/cli/plan_sketch.h"

#include <fmt/format.h>

#include "absl/status/status.h"
#include "client/cli/plan_bounds.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "common/plan/sketches/sketch_toml.h"
#include "common/plan/topology_toml.h"

namespace phub::client::cli {
namespace {

absl::StatusOr<plan::TacclUnits> UnitsOf(const PlanArguments& arguments) {
  plan::TacclUnits units;
  if (!arguments.node.empty()) {
    units.model = plan::ParseNodeModel(arguments.node);
    if (!units.model)
      return absl::InvalidArgumentError(
          fmt::format("--node: '{}' is not NDv2, DGX2, HubAndSpoke or custom", arguments.node));
  }
  if (!arguments.chunk.empty()) {
    const auto bytes = ParseBytes(arguments.chunk);
    if (!bytes || *bytes < 1 || *bytes > (std::uint64_t{1} << 40))
      return absl::InvalidArgumentError(
          fmt::format("--chunk: '{}' is not a size such as 1MiB", arguments.chunk));
    units.chunk_bytes = static_cast<std::int64_t>(*bytes);
  }
  if (!arguments.time_unit.empty()) {
    units.time_unit_ns = ParseDuration(arguments.time_unit);
    if (!units.time_unit_ns || *units.time_unit_ns < 1 || *units.time_unit_ns > kSecond)
      return absl::InvalidArgumentError(
          fmt::format("--time-unit: '{}' is not a duration such as 1us", arguments.time_unit));
  }
  return units;
}

std::string Summary(const plan::TacclSketch& sketch, const plan::TacclProfile& profile,
                    const plan::ExpandedSketch& expanded) {
  const plan::Topology& topology = expanded.topology;
  std::string text =
      fmt::format("{}: {} ranks on {} node(s), {} links between GPUs, {} of them between nodes.\n",
                  Printable(topology.name()), topology.members().size(), sketch.nodes,
                  expanded.pairs, expanded.pairs_across);
  text += fmt::format("A chunk is {}. A time unit of the profile is {}.\n",
                      HumanBytes(static_cast<std::uint64_t>(profile.chunk_bytes)),
                      HumanDuration(profile.time_unit_ns));
  if (expanded.pairs_across > 0)
    text += fmt::format("A chunk takes {} between nodes.\n",
                        HumanSeconds(expanded.chunk_time_across.ToDouble() * 1e-9 *
                                     static_cast<double>(profile.time_unit_ns)));
  text += fmt::format("With ports of switches: {} nodes, {} directed links.\n",
                      topology.nodes().size(), topology.links().size());
  return text;
}

std::string AsComment(std::string_view text) {
  std::string comment;
  for (std::size_t end = 0; !text.empty(); text.remove_prefix(end + 1)) {
    end = text.find('\n');
    comment += fmt::format("# {}\n", text.substr(0, end));
  }
  return comment;
}

}  // namespace

absl::StatusOr<LoadedSketch> LoadTacclSketch(const PlanArguments& arguments) {
  const absl::StatusOr<plan::TacclUnits> units = UnitsOf(arguments);
  if (!units.ok()) return units.status();
  absl::StatusOr<std::string> text = ReadFile(arguments.sketch, plan::kSketchTextBytesMax);
  if (!text.ok()) return text.status();
  absl::StatusOr<plan::TacclSketch> sketch =
      InFile(arguments.sketch, plan::ParseTacclSketch(*text));
  if (!sketch.ok()) return sketch.status();
  text = ReadFile(arguments.profile, plan::kSketchTextBytesMax);
  if (!text.ok()) return text.status();
  absl::StatusOr<plan::TacclProfile> profile =
      InFile(arguments.profile, plan::ParseTacclProfile(*text, *units));
  if (!profile.ok()) return profile.status();
  absl::StatusOr<plan::ExpandedSketch> expanded =
      InFile(arguments.sketch, plan::Expand(*sketch, *profile));
  if (!expanded.ok()) return expanded.status();
  return LoadedSketch{*std::move(sketch), *std::move(profile), *std::move(expanded)};
}

absl::StatusOr<PlanNetwork> LoadNetwork(const PlanArguments& arguments) {
  const bool is_own = arguments.sketch.ends_with(".toml");
  if (!arguments.sketch.empty() && !is_own) {
    if (!arguments.topology.empty())
      return absl::InvalidArgumentError(
          "--topology: a sketch of TACCL (.json) has its own topology; use a .toml sketch");
    if (arguments.profile.empty())
      return absl::InvalidArgumentError(
          "--profile is missing: a sketch of TACCL (.json) needs the profile of its nodes");
    absl::StatusOr<LoadedSketch> loaded = LoadTacclSketch(arguments);
    if (!loaded.ok()) return loaded.status();
    return PlanNetwork{std::move(loaded->expanded.topology), std::move(loaded->expanded.rules)};
  }
  if (!arguments.profile.empty())
    return absl::InvalidArgumentError(
        "--profile is only for a sketch of TACCL (--sketch FILE.json)");
  absl::StatusOr<plan::Topology> topology = LoadTopology(arguments.topology);
  if (!topology.ok()) return topology.status();
  if (!is_own) return PlanNetwork{*std::move(topology), std::nullopt};
  const absl::StatusOr<std::string> text = ReadFile(arguments.sketch, plan::kSketchTextBytesMax);
  if (!text.ok()) return text.status();
  absl::StatusOr<plan::TopologySketch> sketch =
      InFile(arguments.sketch, plan::ParseSketchToml(*text, *topology));
  if (!sketch.ok()) return sketch.status();
  PlanNetwork network{std::move(sketch->topology), std::nullopt};
  if (!sketch->rules.IsEmpty()) network.rules = std::move(sketch->rules);
  return network;
}

int PlanSketch(const PlanArguments& arguments, const Options&) {
  const absl::StatusOr<LoadedSketch> loaded = LoadTacclSketch(arguments);
  if (!loaded.ok()) return ReportPlanError(loaded.status());
  const std::string summary = Summary(loaded->sketch, loaded->profile, loaded->expanded);
  const absl::Status status =
      WriteOut(arguments.out, AsComment(summary) + plan::TopologyToToml(loaded->expanded.topology));
  if (!status.ok()) return ReportPlanError(status);
  if (!arguments.out.empty()) fmt::print("{}", summary);
  return static_cast<int>(kOk);
}

}  // namespace phub::client::cli
