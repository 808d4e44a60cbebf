// phubctl plan groups: compiles concurrent groups jointly, and prints and writes their plans.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/status/status.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "client/cli/plan_bounds.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "common/plan/draw.h"
#include "common/plan/forest_json.h"
#include "common/plan/groups/compiler.h"
#include "common/plan/verifier.h"

namespace phub::client::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::StatusOr<std::vector<plan::Group>> LoadGroups(const PlanArguments& arguments,
                                                    const plan::Topology& topology,
                                                    std::int64_t bytes) {
  if (arguments.groups.empty())
    return plan::ParallelGroups(
        topology,
        {std::max(arguments.mp, 1u), std::max(arguments.pp, 1u), std::max(arguments.dp, 1u)},
        bytes);
  const absl::StatusOr<std::string> text = ReadFile(arguments.groups, plan::kGroupsTextBytesMax);
  if (!text.ok()) return text.status();
  return InFile(arguments.groups, plan::ParseGroupsToml(*text, topology, bytes));
}

// "0-3", "0-56 step 8", or a list.
std::string RanksText(const std::vector<std::uint32_t>& ranks) {
  const std::uint32_t step = ranks[1] - ranks[0];
  bool is_even = ranks.size() > 2;
  for (std::size_t i = 1; i < ranks.size(); ++i) is_even &= ranks[i] - ranks[i - 1] == step;
  if (is_even)
    return step == 1 ? fmt::format("{}-{}", ranks.front(), ranks.back())
                     : fmt::format("{}-{} step {}", ranks.front(), ranks.back(), step);
  constexpr std::size_t kShown = 8;
  if (ranks.size() <= kShown) return fmt::format("{}", fmt::join(ranks, " "));
  return fmt::format("{} and {} more", fmt::join(ranks.begin(), ranks.begin() + kShown, " "),
                     ranks.size() - kShown);
}

std::string SpinesText(const plan::Topology& topology, const plan::CompiledGroup& group) {
  if (group.spines.empty()) return "-";
  std::string text;
  for (const plan::GroupSpine& way : group.spines)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", topology.node(way.spine).name,
                        way.share == plan::Rational(1) ? "" : " " + way.share.ToString());
  return text;
}

// Loads in times of the data of the largest group.
std::string LoadText(const plan::Rational& load) { return fmt::format("{:.2f}", load.ToDouble()); }

// FRED's network: groups take turns.
std::string TurnTables(const std::vector<plan::Group>& groups,
                       const plan::CompiledGroups& compiled) {
  using Align = Table::Align;
  Table table({{"GROUP"},
               {"PHASE"},
               {"RANKS"},
               {"TURN", Align::kRight},
               {"SLOTS", Align::kRight},
               {"ALONE", Align::kRight},
               {"TOGETHER", Align::kRight}});
  Table phases({{"PHASE"},
                {"GROUPS", Align::kRight},
                {"LOAD", Align::kRight},
                {"MEMBERS", Align::kRight},
                {"CONFLICTS", Align::kRight},
                {"TURNS", Align::kRight},
                {"TIME", Align::kRight}});
  for (const plan::CompiledPhase& phase : compiled.phases) {
    for (const std::uint32_t i : phase.groups) {
      const plan::CompiledGroup& group = compiled.groups[i];
      table.Add({groups[i].name, std::string(PhaseName(phase.phase)), RanksText(groups[i].ranks),
                 fmt::format("{}", group.turn), fmt::format("{}", group.slots),
                 HumanSeconds(group.seconds_alone), HumanSeconds(group.seconds_together)});
    }
    phases.Add({std::string(PhaseName(phase.phase)), fmt::format("{}", phase.groups.size()),
                LoadText(phase.load), LoadText(phase.members_load),
                fmt::format("{}", phase.conflicts),
                fmt::format("{}{}", phase.is_proven ? "" : "at most ", phase.turns),
                HumanSeconds(phase.seconds)});
  }
  return fmt::format("{}\n{}", table.Text(), phases.Text());
}

std::string GroupTables(const plan::Topology& topology, const std::vector<plan::Group>& groups,
                        const plan::CompiledGroups& compiled) {
  if (compiled.takes_turns) return TurnTables(groups, compiled);
  using Align = Table::Align;
  Table table({{"GROUP"},
               {"PHASE"},
               {"RANKS"},
               {"LEAVES", Align::kRight},
               {"SPINES"},
               {"SLOTS", Align::kRight},
               {"ALONE", Align::kRight},
               {"TOGETHER", Align::kRight}});
  for (const plan::CompiledPhase& phase : compiled.phases) {
    for (const std::uint32_t i : phase.groups) {
      const plan::CompiledGroup& group = compiled.groups[i];
      table.Add({groups[i].name, std::string(PhaseName(phase.phase)), RanksText(groups[i].ranks),
                 fmt::format("{}", group.leaves.size()), SpinesText(topology, group),
                 fmt::format("{}", group.slots), HumanSeconds(group.seconds_alone),
                 HumanSeconds(group.seconds_together)});
    }
  }
  Table phases({{"PHASE"},
                {"GROUPS", Align::kRight},
                {"CROSSING", Align::kRight},
                {"LOAD", Align::kRight},
                {"BOUND", Align::kRight},
                {"MEMBERS", Align::kRight},
                {"CONFLICTS", Align::kRight},
                {"PAIRS", Align::kRight},
                {"AT LEAST", Align::kRight},
                {"TIME", Align::kRight}});
  for (const plan::CompiledPhase& phase : compiled.phases)
    phases.Add({std::string(PhaseName(phase.phase)), fmt::format("{}", phase.groups.size()),
                fmt::format("{}", phase.crossing), LoadText(phase.load), LoadText(phase.bound),
                LoadText(phase.members_load), fmt::format("{}", phase.conflicts),
                fmt::format("{}", phase.pairs), fmt::format("{}", phase.pairs_least),
                HumanSeconds(phase.seconds)});
  return fmt::format("{}\n{}", table.Text(), phases.Text());
}

// Phases whose number of pairs is not proven to be the least.
std::string GapText(const plan::CompiledGroups& compiled) {
  std::string text;
  for (const plan::CompiledPhase& phase : compiled.phases)
    if (phase.pairs > phase.pairs_least)
      text += fmt::format(
          "{}: the search found no plan with fewer than {} pairs; {} to {} are not ruled out.\n",
          PhaseName(phase.phase), phase.pairs, phase.pairs_least, phase.pairs - 1);
  return text;
}

OrderedJson GroupsJson(const plan::Topology& topology, const std::vector<plan::Group>& groups,
                       const plan::CompiledGroups& compiled) {
  OrderedJson json{{"topology", topology.name()}, {"bytes", compiled.bytes}};
  OrderedJson& list = json["groups"] = OrderedJson::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const plan::CompiledGroup& group = compiled.groups[i];
    OrderedJson& entry =
        list.emplace_back(OrderedJson{{"name", groups[i].name},
                                      {"phase", PhaseName(groups[i].phase)},
                                      {"ranks", groups[i].ranks},
                                      {"bytes", groups[i].bytes},
                                      {"leaves", NamesOf(topology, group.leaves)},
                                      {"spines", OrderedJson::object()},
                                      {"turn", group.turn},
                                      {"slots", group.slots},
                                      {"seconds_alone", group.seconds_alone},
                                      {"seconds_together", group.seconds_together}});
    for (const plan::GroupSpine& way : group.spines)
      entry["spines"][topology.node(way.spine).name] = way.share.ToString();
  }
  OrderedJson& phases = json["phases"] = OrderedJson::array();
  for (const plan::CompiledPhase& phase : compiled.phases)
    phases.push_back({{"phase", PhaseName(phase.phase)},
                      {"groups", phase.groups.size()},
                      {"crossing", phase.crossing},
                      {"load", phase.load.ToString()},
                      {"bound", phase.bound.ToString()},
                      {"members_load", phase.members_load.ToString()},
                      {"conflicts", phase.conflicts},
                      {"pairs", phase.pairs},
                      {"pairs_least", phase.pairs_least},
                      {"turns", phase.turns},
                      {"proven", phase.is_proven},
                      {"seconds", phase.seconds}});
  return json;
}

absl::Status WritePlans(const std::string& folder, const plan::Topology& topology,
                        const std::vector<plan::Group>& groups,
                        const plan::CompiledGroups& compiled) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder, error))
    return absl::InvalidArgumentError(fmt::format("{}: cannot create the folder", folder));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string file = fmt::format("{}/{}.json", folder, groups[i].name);
    const absl::Status status =
        WriteOut(file, plan::ForestToJson(topology, compiled.groups[i].forest));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

int DrawPlansTogether(const PlanArguments& arguments) {
  if (!arguments.home.empty()) {
    fmt::print(stderr, "phubctl: --home is only for one plan\nSee: phubctl plan draw --help\n");
    return kUsage;
  }
  const absl::StatusOr<plan::Topology> topology = LoadTopology(arguments.topology);
  if (!topology.ok()) return ReportPlanError(topology.status());
  std::vector<plan::NamedForest> forests;
  for (const std::string& file : arguments.plans) {
    absl::StatusOr<plan::Forest> forest = LoadPlan(*topology, file);
    if (!forest.ok()) return ReportPlanError(forest.status());
    if (const auto report = plan::Verify(*topology, *forest); !report.ok())
      return ReportPlanError(absl::InvalidArgumentError(fmt::format(
          "{}: the plan is not valid: {}", file, std::string(report.status().message()))));
    forests.push_back({std::filesystem::path(file).stem().string(), *std::move(forest)});
  }
  const absl::Status status = WriteOut(arguments.out, plan::DrawForests(*topology, forests));
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

int PlanGroups(const PlanArguments& arguments, const Options& options) {
  if (arguments.groups.empty() && arguments.mp == 0 && arguments.pp == 0 && arguments.dp == 0) {
    fmt::print(stderr,
               "phubctl: --groups, or --mp, --pp and --dp, are required\n"
               "See: phubctl plan groups --help\n");
    return kUsage;
  }
  const absl::StatusOr<plan::Topology> topology = LoadTopology(arguments.topology);
  if (!topology.ok()) return ReportPlanError(topology.status());
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return ReportPlanError(simulation.status());
  const absl::StatusOr<std::vector<plan::Group>> groups =
      LoadGroups(arguments, *topology, simulation->size_bytes);
  if (!groups.ok()) return ReportPlanError(groups.status());
  plan::CompilerOptions compiler;
  compiler.least_load = arguments.least_load;
  if (arguments.pieces > 0) compiler.pieces = arguments.pieces;
  const absl::StatusOr<plan::CompiledGroups> compiled =
      plan::CompileGroups(*topology, *groups, compiler);
  if (!compiled.ok()) return ReportPlanError(compiled.status());
  const bool is_json = options.output == Output::kJson || arguments.out == "json";
  if (!arguments.out.empty() && arguments.out != "json")
    if (absl::Status status = WritePlans(arguments.out, *topology, *groups, *compiled);
        !status.ok())
      return ReportPlanError(status);
  const std::string text =
      is_json
          ? GroupsJson(*topology, *groups, *compiled)
                    .dump(2, ' ', false, OrderedJson::error_handler_t::replace) +
                "\n"
          : GroupTables(*topology, *groups, *compiled) +
                fmt::format("\n{} are in times of {} on a unit link.\n",
                            compiled->takes_turns ? "LOAD and MEMBERS" : "LOAD, BOUND and MEMBERS",
                            HumanBytes(static_cast<std::uint64_t>(compiled->bytes))) +
                GapText(*compiled);
  const absl::Status status = WriteOut("", text);
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

}  // namespace phub::client::cli
