// phubctl plan: the commands that need no daemon, and their output.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "client/cli/plan_bounds.h"
#include "common/base/printable.h"
#include "common/base/suggest.h"
#include "common/base/units.h"
#include "common/plan/bound.h"
#include "common/plan/chooser.h"
#include "common/plan/draw.h"
#include "common/plan/forest_json.h"
#include "common/plan/msccl.h"
#include "common/plan/reorder.h"
#include "common/plan/topology_json.h"
#include "common/plan/verifier.h"

namespace phub::client::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

int Print(const OrderedJson& json) {
  const absl::Status status =
      WriteOut("", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

int PrintText(const std::string& file, std::string_view text) {
  const absl::Status status = WriteOut(file, text);
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

// Shows the progress of long searches, only on a terminal.
void ShowProgress(std::string_view what) {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K{}", what);
}

plan::PlannerOptions SearchOf(const PlanArguments& arguments, const PlanNetwork& network) {
  plan::PlannerOptions options{.seed = arguments.seed, .starts = arguments.starts};
  options.rules = network.RulesOrNull();
  options.progress = [](std::size_t done, std::size_t total) {
    ShowProgress(fmt::format("searching: {} %", total == 0 ? 100 : 100 * done / total));
  };
  return options;
}

absl::StatusOr<plan::Choice> ChooseFor(const PlanArguments& arguments, const PlanNetwork& network) {
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return simulation.status();
  plan::ChooserOptions options{.simulation = *simulation, .planner = SearchOf(arguments, network)};
  options.progress = [](std::string_view planner) { ShowProgress(planner); };
  absl::StatusOr<plan::Choice> choice = plan::Choose(network.topology, options);
  ShowProgress("");
  return choice;
}

absl::StatusOr<plan::Forest> MakeNamed(const PlanArguments& arguments, const PlanNetwork& network) {
  if (arguments.planner == "best") {
    absl::StatusOr<plan::Choice> choice = ChooseFor(arguments, network);
    if (!choice.ok()) return choice.status();
    return std::move(choice->candidates[*choice->best].forest);
  }
  const plan::Planner* planner = plan::FindPlanner(arguments.planner);
  if (planner == nullptr) {
    std::vector<std::string_view> names{"best"};
    for (const plan::Planner& known : plan::Planners()) names.push_back(known.name);
    return absl::NotFoundError(fmt::format("unknown planner \"{}\"{} (known: {})",
                                           arguments.planner, DidYouMean(arguments.planner, names),
                                           fmt::join(names, ", ")));
  }
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return simulation.status();
  plan::PlannerOptions options = SearchOf(arguments, network);
  options.size_bytes = simulation->size_bytes;
  absl::StatusOr<plan::Forest> forest = plan::MakePlan(*planner, network.topology, options);
  ShowProgress("");
  if (!forest.ok())
    return absl::Status(
        forest.status().code(),
        fmt::format("{} cannot plan {}: {}", arguments.planner, network.topology.name(),
                    std::string(forest.status().message())));
  return forest;
}

// Loads and verifies a plan, and runs `body` with it.
template <typename Body>
int WithPlan(const PlanArguments& arguments, Body body) {
  const absl::StatusOr<VerifiedPlan> plan = LoadVerifiedPlan(arguments);
  if (!plan.ok()) return ReportPlanError(plan.status());
  return body(plan->network.topology, plan->forest, plan->report);
}

std::string InChunks(const plan::Topology& topology, const plan::Rational& time) {
  const auto members = static_cast<std::int64_t>(topology.members().size());
  const auto chunks = plan::Multiply(time, plan::Rational(members));
  return chunks ? chunks->ToString() : fmt::format("{:.6g}", time.ToDouble() * double(members));
}

}  // namespace

int TopologyShow(const PlanArguments& arguments, const Options& options) {
  const absl::StatusOr<plan::Topology> topology = LoadTopology(arguments.topology);
  if (!topology.ok()) return ReportPlanError(topology.status());
  if (options.output == Output::kJson) return PrintText("", plan::TopologyToJson(*topology));
  fmt::print("{}: {} members, {} switches, {} directed links; a unit link carries {}/s\n",
             Printable(topology->name()), topology->members().size(),
             topology->nodes().size() - topology->members().size(), topology->links().size(),
             HumanBytes(static_cast<std::uint64_t>(topology->unit_bytes_per_s())));
  Table table(
      {{"FROM"}, {"TO"}, {"UNITS", Table::Align::kRight}, {"LATENCY", Table::Align::kRight}});
  for (std::uint32_t i = 0; i < topology->links().size(); ++i) {
    const plan::Link& link = topology->link(plan::LinkIndex{i});
    table.Add({topology->node(link.from).name, topology->node(link.to).name,
               topology->CapacityOf(plan::LinkIndex{i}).ToString(),
               HumanDuration(link.latency_ns)});
  }
  return PrintText("", table.Text());
}

int PlanMake(const PlanArguments& arguments, const Options&) {
  const absl::StatusOr<PlanNetwork> network = LoadNetwork(arguments);
  if (!network.ok()) return ReportPlanError(network.status());
  const plan::Topology& topology = network->topology;
  absl::StatusOr<plan::Forest> forest = MakeNamed(arguments, *network);
  if (!forest.ok()) return ReportPlanError(forest.status());
  if (arguments.reorder) {
    const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
    if (!simulation.ok()) return ReportPlanError(simulation.status());
    const absl::StatusOr<plan::CostMatrix> costs = plan::CostsOf(topology, simulation->size_bytes);
    if (!costs.ok()) return ReportPlanError(costs.status());
    absl::StatusOr<plan::ReorderResult> better =
        plan::Reorder(topology, *forest, *costs, *simulation);
    if (!better.ok()) return ReportPlanError(better.status());
    fmt::print(stderr, "reordered: {} -> {} in lockstep\n", HumanSeconds(better->seconds_before),
               HumanSeconds(better->seconds_after));
    forest = std::move(better->forest);
  }
  if (const auto report = plan::Verify(topology, *forest); !report.ok())
    return ReportPlanError(report.status());
  if (network->rules)
    if (absl::Status status = plan::CheckRules(topology, *forest, *network->rules); !status.ok())
      return ReportPlanError(absl::InvalidArgumentError(
          fmt::format("--reorder: the new order of ranks breaks the sketch: {}",
                      std::string(status.message()))));
  return PrintText(arguments.out, plan::ForestToJson(topology, *forest));
}

int PlanVerify(const PlanArguments& arguments, const Options& options) {
  return WithPlan(arguments, [&](const plan::Topology& topology, const plan::Forest& forest,
                                 const plan::VerifyReport& report) {
    if (options.output == Output::kJson) {
      OrderedJson json{{"plan", arguments.plan},
                       {"ok", true},
                       {"planner", forest.planner},
                       {"trees", forest.trees.size()},
                       {"reduce_steps", report.reduce_steps},
                       {"gather_steps", report.gather_steps},
                       {"steps", report.steps},
                       {"reduce_time", report.reduce_time.ToString()},
                       {"gather_time", report.gather_time.ToString()},
                       {"total_time", report.total_time.ToString()}};
      OrderedJson& steps = json["step_loads"] = OrderedJson::array();
      for (const auto& loads : report.step_loads) {
        OrderedJson& step = steps.emplace_back(OrderedJson::object());
        for (const plan::LinkLoad& load : loads) {
          const auto share = plan::Rational::Make(load.share, forest.share_unit);
          step[topology.LinkName(load.link)] = share ? share->ToString() : "";
        }
      }
      return Print(json);
    }
    fmt::print("{}: valid. {} trees by {}, {} + {} steps.\n", arguments.plan, forest.trees.size(),
               Printable(forest.planner), report.reduce_steps, report.gather_steps);
    fmt::print(
        "Busiest link, in times of a chunk of 1/{} on a unit link: reduce {}, gather {}, both {}; "
        "in lockstep {:.6g}\n",
        topology.members().size(), InChunks(topology, report.reduce_time),
        InChunks(topology, report.gather_time), InChunks(topology, report.total_time),
        report.lockstep_time * static_cast<double>(topology.members().size()));
    return static_cast<int>(kOk);
  });
}

int PlanBound(const PlanArguments& arguments, const Options& options) {
  const absl::StatusOr<plan::Topology> topology = LoadTopology(arguments.topology);
  if (!topology.ok()) return ReportPlanError(topology.status());
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return ReportPlanError(simulation.status());
  const auto bound = plan::BoundOf(*topology);
  if (!bound) return ReportPlanError(absl::InvalidArgumentError("the bound is out of range"));
  const auto seconds = [&](const plan::Rational& chunks) {
    return plan::SecondsFor(*topology, chunks, static_cast<double>(simulation->size_bytes));
  };
  if (options.output == Output::kJson) {
    const auto entry = [&](const plan::Rational& chunks) {
      return OrderedJson{{"chunk_times", chunks.ToString()}, {"seconds", seconds(chunks)}};
    };
    OrderedJson json{{"topology", topology->name()},
                     {"members", topology->members().size()},
                     {"reduce_scatter", entry(bound->reduce.chunk_times)},
                     {"all_gather", entry(bound->gather.chunk_times)},
                     {"one_after_the_other", entry(bound->one_after_the_other)},
                     {"members_sum", entry(bound->members_sum())},
                     {"aggregated", entry(bound->narrowest.chunk_times)},
                     {"cut", NamesOf(*topology, bound->gather.cut)},
                     {"narrowest_cut", NamesOf(*topology, bound->narrowest.cut)},
                     {"partition", OrderedJson::array()}};
    for (const auto& group : bound->partition.groups)
      json["partition"].push_back(NamesOf(*topology, group));
    return Print(json);
  }
  Table table({{"EXCHANGE"},
               {"CHUNK TIMES", Table::Align::kRight},
               {"STEPS", Table::Align::kRight},
               {"TIME", Table::Align::kRight}});
  for (const auto& [name, chunks] :
       {std::pair{"reduce-scatter", bound->reduce.chunk_times},
        std::pair{"all-gather", bound->gather.chunk_times},
        std::pair{"one phase after the other", bound->one_after_the_other},
        std::pair{"narrowest cut (any plan)", bound->narrowest.chunk_times},
        std::pair{"partition (only members sum)", bound->partition.chunk_times},
        std::pair{"any plan in which only members sum", bound->members_sum()}})
    table.Add({name, chunks.ToString(), fmt::format("{}", chunks.Ceiling()),
               HumanSeconds(seconds(chunks))});
  return PrintText("",
                   fmt::format("{}\nNarrowest cut for all-gather: {}\n"
                               "Narrowest cut for any plan: {}\nPartition: {}\n",
                               table.Text(), Printable(DescribeCut(*topology, bound->gather.cut)),
                               Printable(DescribeCut(*topology, bound->narrowest.cut)),
                               Printable(DescribePartition(*topology, bound->partition))));
}

int PlanCompare(const PlanArguments& arguments, const Options& options) {
  const absl::StatusOr<PlanNetwork> network = LoadNetwork(arguments);
  if (!network.ok()) return ReportPlanError(network.status());
  const plan::Topology& topology = network->topology;
  const absl::StatusOr<plan::Choice> choice = ChooseFor(arguments, *network);
  if (!choice.ok()) return ReportPlanError(choice.status());
  OrderedJson rows = OrderedJson::array();
  Table table({{"PLANNER"},
               {"STEPS", Table::Align::kRight},
               {"PIECES", Table::Align::kRight},
               {"MOST BYTES", Table::Align::kRight},
               {"BUSIEST LINK", Table::Align::kRight},
               {"TIME", Table::Align::kRight},
               {"OF BOUND", Table::Align::kRight},
               {"LINK USE", Table::Align::kRight},
               {""}});
  for (std::size_t i = 0; i < choice->candidates.size(); ++i) {
    const plan::Candidate& row = choice->candidates[i];
    const std::string reason(row.status.message());
    if (!row.status.ok()) {
      rows.push_back({{"planner", row.planner}, {"refused", reason}});
      table.Add({row.planner, "-", "-", "-", "-", "-", "-", "-", reason});
      continue;
    }
    const bool is_best = i == *choice->best;
    rows.push_back({{"planner", row.planner},
                    {"steps", row.steps},
                    {"pieces", row.pieces},
                    {"busiest_link_bytes", row.busiest_link_bytes},
                    {"busiest_link_seconds", row.busiest_link_seconds},
                    {"seconds", row.seconds},
                    {"lockstep", !row.is_simulated_as_flows},
                    {"sums_in_switches", row.sums_in_switches},
                    {"of_bound", row.of_bound},
                    {"link_use", row.mean_link_use},
                    {"best", is_best}});
    table.Add({row.planner, fmt::format("{}", row.steps), fmt::format("{}", row.pieces),
               HumanBytes(static_cast<std::uint64_t>(row.busiest_link_bytes)),
               HumanSeconds(row.busiest_link_seconds), HumanSeconds(row.seconds),
               fmt::format("{:.3f}", row.of_bound),
               fmt::format("{:.0f} %", 100 * row.mean_link_use),
               is_best                     ? "<- best"
               : row.is_simulated_as_flows ? ""
                                           : "in lockstep"});
  }
  if (options.output == Output::kJson)
    return Print({{"topology", topology.name()},
                  {"size", arguments.size},
                  {"bound_seconds", choice->bound_seconds},
                  {"in_switch_bound_seconds", choice->in_switch_bound_seconds},
                  {"one_after_the_other_seconds", choice->one_after_the_other_seconds},
                  {"planners", rows}});
  return PrintText("", fmt::format("{}\n{}", table.Text(), DescribeBounds(topology, *choice)));
}

int PlanDraw(const PlanArguments& arguments, const Options&) {
  if (arguments.plans.size() > 1) return DrawPlansTogether(arguments);
  PlanArguments single = arguments;
  single.plan = arguments.plans.front();
  return WithPlan(single, [&](const plan::Topology& topology, const plan::Forest& forest,
                              const plan::VerifyReport&) {
    const absl::StatusOr<std::string> picture = plan::DrawForest(topology, forest, arguments.home);
    if (!picture.ok()) return ReportPlanError(picture.status());
    return PrintText(arguments.out, *picture);
  });
}

int PlanExport(const PlanArguments& arguments, const Options&) {
  return WithPlan(arguments, [&](const plan::Topology& topology, const plan::Forest& forest,
                                 const plan::VerifyReport&) {
    const absl::StatusOr<std::string> xml = plan::ForestToMsccl(topology, forest);
    if (!xml.ok()) return ReportPlanError(xml.status());
    return PrintText(arguments.out, *xml);
  });
}

int PlanImport(const PlanArguments& arguments, const Options&) {
  return WithPlan(arguments, [&](const plan::Topology& topology, const plan::Forest& forest,
                                 const plan::VerifyReport&) {
    return PrintText(arguments.out, plan::ForestToJson(topology, forest));
  });
}

}  // namespace phub::client::cli
