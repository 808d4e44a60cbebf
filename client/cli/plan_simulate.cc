// phubctl plan simulate: one plan, or several that exchange at the same time.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "client/cli/plan_bounds.h"
#include "common/base/units.h"
#include "common/plan/groups/together.h"

namespace phub::client::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

int PrintSimulated(const OrderedJson& json) {
  const absl::Status status =
      WriteOut("", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

int SimulateOne(const PlanArguments& arguments, const VerifiedPlan& plan, const Options& options) {
  const plan::Topology& topology = plan.network.topology;
  absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return ReportPlanError(simulation.status());
  simulation->keep_timeline = !arguments.trace.empty();
  const absl::StatusOr<plan::SimulationResult> result =
      plan::Simulate(topology, plan.forest, *simulation);
  if (!result.ok()) return ReportPlanError(result.status());
  if (simulation->keep_timeline) {
    const absl::Status status =
        WriteOut(arguments.trace, plan::ChromeTrace(topology, plan.forest, *result));
    if (!status.ok()) return ReportPlanError(status);
  }
  const double busiest = *std::max_element(result->link_use.begin(), result->link_use.end());
  if (options.output == Output::kJson) {
    OrderedJson use = OrderedJson::object();
    for (std::uint32_t i = 0; i < result->link_use.size(); ++i)
      use[topology.LinkName(plan::LinkIndex{i})] = result->link_use[i];
    return PrintSimulated({{"time_ps", result->time_ps},
                           {"seconds", result->seconds()},
                           {"size_bytes", simulation->size_bytes},
                           {"pieces", simulation->pieces},
                           {"link_use", use}});
  }
  fmt::print("{} in {} piece(s): {}; utilization of the busiest link: {:.1f} %\n",
             HumanBytes(static_cast<std::uint64_t>(simulation->size_bytes)), simulation->pieces,
             HumanSeconds(result->seconds()), 100 * busiest);
  return static_cast<int>(kOk);
}

// The options that SimulateSeveral ignores; empty: none is given.
std::string OptionForOnePlan(const PlanArguments& arguments) {
  if (!arguments.trace.empty()) return "--trace";
  if (arguments.lockstep) return "--lockstep";
  if (!arguments.sum_rate.empty()) return "--sum-rate";
  return arguments.optimizer_rate.empty() ? "" : "--optimizer-rate";
}

int SimulateSeveral(const PlanArguments& arguments, const std::vector<VerifiedPlan>& plans,
                    const Options& options) {
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return ReportPlanError(simulation.status());
  const plan::Topology& topology = plans.front().network.topology;
  std::vector<plan::SizedPlan> sized;
  for (const VerifiedPlan& plan : plans) sized.push_back({&plan.forest, simulation->size_bytes});
  const absl::StatusOr<std::vector<double>> together =
      plan::SimulateTogether(topology, sized, simulation->pieces);
  if (!together.ok()) return ReportPlanError(together.status());
  Table table({{"PLAN"},
               {"MEMBERS", Table::Align::kRight},
               {"ALONE", Table::Align::kRight},
               {"TOGETHER", Table::Align::kRight},
               {"RATIO", Table::Align::kRight}});
  OrderedJson rows = OrderedJson::array();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto alone = plan::SimulateTogether(topology, {&sized[i], 1}, simulation->pieces);
    if (!alone.ok()) return ReportPlanError(alone.status());
    const std::string name = std::filesystem::path(arguments.plans[i]).stem().string();
    const std::size_t members = plan::MembersOf(topology, plans[i].forest).size();
    const double seconds = (*together)[i];
    table.Add({name, fmt::format("{}", members), HumanSeconds(alone->front()),
               HumanSeconds(seconds), fmt::format("{:.3f}", seconds / alone->front())});
    rows.push_back({{"plan", arguments.plans[i]},
                    {"members", members},
                    {"seconds_alone", alone->front()},
                    {"seconds_together", seconds}});
  }
  const double last = *std::max_element(together->begin(), together->end());
  if (options.output == Output::kJson) {
    return PrintSimulated({{"seconds", last},
                           {"size_bytes", simulation->size_bytes},
                           {"pieces", simulation->pieces},
                           {"plans", std::move(rows)}});
  }
  const absl::Status status = WriteOut(
      "", fmt::format("{}\nAll {} plans at once, {} each in {} piece(s): {}\n", table.Text(),
                      plans.size(), HumanBytes(static_cast<std::uint64_t>(simulation->size_bytes)),
                      simulation->pieces, HumanSeconds(last)));
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

}  // namespace

int PlanSimulate(const PlanArguments& arguments, const Options& options) {
  if (const std::string option = OptionForOnePlan(arguments);
      arguments.plans.size() > 1 && !option.empty()) {
    fmt::print(stderr, "phubctl: {} is only for one plan\nSee: phubctl plan simulate --help\n",
               option);
    return kUsage;
  }
  std::vector<VerifiedPlan> plans;
  for (const std::string& file : arguments.plans) {
    PlanArguments single = arguments;
    single.plan = file;
    absl::StatusOr<VerifiedPlan> plan = LoadVerifiedPlan(single);
    if (!plan.ok()) return ReportPlanError(plan.status());
    plans.push_back(*std::move(plan));
  }
  if (plans.size() == 1) return SimulateOne(arguments, plans.front(), options);
  return SimulateSeveral(arguments, plans, options);
}

}  // namespace phub::client::cli
