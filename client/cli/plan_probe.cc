// phubctl plan probe: has the daemons measure the links between racks, and proposes a plan.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "client/cli/contexts.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "client/cli/plan_bounds.h"
#include "client/cli/probe_racks.h"
#include "client/cli/rpc.h"
#include "client/cli/topology_text.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "common/plan/advice.h"
#include "common/plan/forest_json.h"
#include "common/plan/topology_json.h"

namespace phub::client::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Probed : plan::Surveyed {
  v1::RacksInfo racks;
};

// Payload rate in bits per second, the usual unit of links.
std::string RateText(double bytes_per_s) {
  const double bits = bytes_per_s * 8;
  if (bits >= 1e10) return fmt::format("{:.1f} Gbit/s", bits * 1e-9);
  if (bits >= 1e9) return fmt::format("{:.2f} Gbit/s", bits * 1e-9);
  return bits >= 1e7 ? fmt::format("{:.0f} Mbit/s", bits * 1e-6)
                     : fmt::format("{:.2f} Mbit/s", bits * 1e-6);
}

template <typename Cell>
std::string MatrixText(const Probed& probed, const char* corner, Cell cell) {
  std::vector<Table::Column> columns{{corner}};
  const std::size_t count = probed.measured.bytes_per_s.size();
  for (std::size_t i = 0; i < count; ++i) {
    columns.push_back({fmt::format("{}", i), Table::Align::kRight});
  }
  Table table(std::move(columns));
  for (std::size_t from = 0; from < count; ++from) {
    std::vector<std::string> cells{
        fmt::format("{} {}", from, probed.racks.racks(static_cast<int>(from)))};
    for (std::size_t to = 0; to < count; ++to) {
      cells.push_back(from == to ? "-" : cell(from, to));
    }
    table.Add(std::move(cells));
  }
  return table.Text();
}

std::string GroupsText(const Probed& probed) {
  if (probed.groups.size() == 1)
    return "Groups: none; the distances between racks are about equal.\n";
  std::string text = "Groups:";
  for (const auto& group : probed.groups) text += fmt::format(" {{{}}}", fmt::join(group, " "));
  text += ".\n";
  for (std::size_t a = 0; a < probed.groups.size(); ++a) {
    for (std::size_t b = a + 1; b < probed.groups.size(); ++b) {
      text += fmt::format("  between {{{}}} and {{{}}}, all pairs at once: {} out, {} back\n",
                          fmt::join(probed.groups[a], " "), fmt::join(probed.groups[b], " "),
                          RateText(probed.between[a][b]), RateText(probed.between[b][a]));
    }
  }
  return text;
}

std::string AdviceText(const Probed& probed, const plan::Advice& advice, std::uint64_t size) {
  std::string order;
  for (const std::uint32_t rank : advice.order) {
    order +=
        fmt::format("{}{}", order.empty() ? "" : ",", probed.racks.racks(static_cast<int>(rank)));
  }
  std::string text = fmt::format(
      "Order of racks: {}\n  racks = \"{}\"\n  {} along a ring: {} as configured, {} in this "
      "order\n",
      fmt::join(advice.order, " "), Printable(order), HumanBytes(size),
      HumanSeconds(advice.ring_seconds), HumanSeconds(advice.ordered_ring_seconds));
  text += fmt::format("Plan: {} as configured ({}), ", HumanSeconds(advice.configured.seconds),
                      advice.configured.planner);
  constexpr double kWorthIt = 1.02;
  if (advice.gain() < kWorthIt) return text + "which is the fastest.\n";
  return text + fmt::format("{} with {}: {:.2f} times as fast.\n",
                            HumanSeconds(advice.proposed.seconds), advice.proposed.planner,
                            advice.gain());
}

std::string ProbeText(const Probed& probed, const plan::Advice& advice, std::uint64_t size) {
  const plan::Measured& measured = probed.measured;
  return fmt::format("{}\n{}\n{}{}",
                     MatrixText(probed, "ROUND TRIP",
                                [&](std::size_t a, std::size_t b) {
                                  return HumanSeconds(measured.round_trip_s[a][b]);
                                }),
                     MatrixText(probed, "BANDWIDTH TO",
                                [&](std::size_t a, std::size_t b) {
                                  return RateText(measured.bytes_per_s[a][b]);
                                }),
                     GroupsText(probed), AdviceText(probed, advice, size));
}

std::string ProbeJson(const Probed& probed, const plan::Advice& advice, std::uint64_t size) {
  OrderedJson endpoints = OrderedJson::array();
  for (const std::string& rack : probed.racks.racks()) endpoints.push_back(rack);
  const auto planned = [](const plan::AdvisedPlan& plan) {
    return OrderedJson{{"planner", plan.planner}, {"seconds", plan.seconds}};
  };
  const OrderedJson json{
      {"racks", endpoints},
      {"round_trip_s", probed.measured.round_trip_s},
      {"bytes_per_s", probed.measured.bytes_per_s},
      {"groups", probed.groups},
      {"between_groups_bytes_per_s", probed.between},
      {"order", advice.order},
      {"size_bytes", size},
      {"ring_seconds",
       {{"configured", advice.ring_seconds}, {"ordered", advice.ordered_ring_seconds}}},
      {"configured", planned(advice.configured)},
      {"proposed", planned(advice.proposed)},
      {"gain", advice.gain()},
      {"topology", OrderedJson::parse(plan::TopologyToJson(advice.measured))}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

// "probe, measured 2 min ago"
std::string StandingText(const v1::RacksInfo& racks) {
  if (!racks.probed()) return "configured";
  if (racks.measured_unix_ns() == 0) return fmt::format("probe, {}", Printable(racks.state()));
  return fmt::format("probe, measured {} ago", AgeText(racks.measured_unix_ns()));
}

int ShowStanding(const v1::RacksInfo& racks, const plan::Topology& topology,
                 const Options& options) {
  const bool stands = !racks.probed() || racks.measured_unix_ns() != 0;
  if (options.output == Output::kJson) {
    OrderedJson json{{"probed", racks.probed()},
                     {"state", racks.probed() ? racks.state() : "configured"},
                     {"measured_unix_ns", racks.measured_unix_ns()},
                     {"racks", OrderedJson::array()},
                     {"topology", nullptr}};
    for (const std::string& rack : racks.racks()) json["racks"].push_back(rack);
    if (stands) json["topology"] = OrderedJson::parse(plan::TopologyToJson(topology));
    fmt::print("{}\n", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
    return kOk;
  }
  fmt::print("topology: {}\n", StandingText(racks));
  if (stands) fmt::print("{}", TopologySwitchesText(topology));
  return kOk;
}

// Called before the measurement.
absl::Status CheckWanted(const PlanArguments& arguments, const v1::RacksInfo& racks) {
  if (arguments.apply && !racks.probed()) {
    return absl::FailedPreconditionError(
        "--apply: the topology of these racks is configured; set topology = \"probe\" at every "
        "rack, or use --topology-out FILE and set topology = FILE");
  }
  if (!arguments.plan_out.empty() && racks.probed() && racks.measured_unix_ns() == 0) {
    return absl::FailedPreconditionError(
        fmt::format("--plan-out: the racks have no topology to plan for ({}); retry later, or "
                    "measure with --apply",
                    Printable(racks.state())));
  }
  return absl::OkStatus();
}

int Apply(RackProber& prober, const plan::Advice& advice, const Options& options) {
  v1::RacksInfo applied;
  const grpc::Status status = prober.Apply(plan::TopologyToJson(advice.measured), applied);
  if (!status.ok()) return Report(status, options);
  fmt::print(stderr, "new jobs are planned for this topology; running jobs keep their plans\n");
  return kOk;
}

int WriteFiles(const PlanArguments& arguments, const plan::Topology& configured,
               const plan::Advice& advice) {
  if (!arguments.topology_out.empty()) {
    const absl::Status status =
        WriteOut(arguments.topology_out, plan::TopologyToJson(advice.measured));
    if (!status.ok()) return ReportPlanError(status);
    fmt::print(
        stderr,
        "wrote {}: set it as `topology` of phubd at every rack and restart them, or examine\n"
        "it with phubctl plan compare --topology {}\n",
        arguments.topology_out, arguments.topology_out);
  }
  if (!arguments.plan_out.empty()) {
    const absl::Status status =
        WriteOut(arguments.plan_out, plan::ForestToJson(configured, advice.plan));
    if (!status.ok()) return ReportPlanError(status);
    fmt::print(stderr, "wrote {}: new jobs use it with plan={}; no daemon needs a restart\n",
               arguments.plan_out, arguments.plan_out);
  }
  return kOk;
}

}  // namespace

int PlanProbe(const PlanArguments& arguments, const Options& given) {
  Options options = given;
  if (absl::Status status = ChooseDaemon(options); !status.ok()) {
    fmt::print(stderr, "phubctl: {}\n", MessageOf(status));
    return absl::IsNotFound(status) ? kNotFound : kUsage;
  }
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return ReportPlanError(simulation.status());
  ProbeSettings settings;
  settings.duration = ParseDuration(arguments.duration).value_or(settings.duration);
  settings.bytes = ParseBytes(arguments.bytes).value_or(0);
  settings.repeat = arguments.repeat;
  Probed probed;
  RackProber prober(options, settings);
  if (grpc::Status status = prober.GetRacks(probed.racks); !status.ok()) {
    return Report(status, options);
  }
  const absl::StatusOr<plan::Topology> configured =
      plan::ParseTopologyJson(probed.racks.topology());
  if (!configured.ok()) return ReportPlanError(configured.status());
  if (arguments.show) return ShowStanding(probed.racks, *configured, options);
  if (absl::Status status = CheckWanted(arguments, probed.racks); !status.ok()) {
    return ReportPlanError(status);
  }
  const auto count = static_cast<std::uint32_t>(probed.racks.racks_size());
  if (grpc::Status status = prober.Survey(count, probed); !status.ok()) {
    return Report(status, options);
  }
  plan::AdviceOptions advising;
  advising.size_bytes = simulation->size_bytes;
  const absl::StatusOr<plan::Advice> advice =
      plan::Advise(*configured, probed.measured, probed.groups, probed.between, advising);
  if (!advice.ok()) return ReportPlanError(advice.status());
  const auto size = static_cast<std::uint64_t>(simulation->size_bytes);
  const absl::Status printed =
      WriteOut("", options.output == Output::kJson ? ProbeJson(probed, *advice, size)
                                                   : ProbeText(probed, *advice, size));
  if (!printed.ok()) return ReportPlanError(printed);
  const int code = arguments.apply ? Apply(prober, *advice, options) : kOk;
  return code == kOk ? WriteFiles(arguments, *configured, *advice) : code;
}

}  // namespace phub::client::cli
