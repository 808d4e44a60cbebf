// phubctl plan memory: the memory that daemons read and write for plans.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "common/base/printable.h"
#include "common/base/suggest.h"
#include "common/base/units.h"
#include "common/optimizer/optimizer_table.h"
#include "common/plan/memory.h"
#include "common/plan/planners/planner.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;
using OrderedJson = nlohmann::ordered_json;

constexpr std::uint32_t kElementBytes = 4;

// A line of the output: a daemon or a planner.
struct MemoryLine {
  std::string name;
  plan::DaemonMemory memory;
  std::string refusal;  // why the planner does not apply
};

absl::StatusOr<plan::MemoryOptions> MemoryOptionsOf(const PlanArguments& arguments) {
  const absl::StatusOr<plan::SimulationOptions> simulation = SimulationOf(arguments);
  if (!simulation.ok()) return simulation.status();
  const auto known = optimizer::Descriptors();
  const auto chosen =
      std::find_if(known.begin(), known.end(), [&](const optimizer::Descriptor& descriptor) {
        return descriptor.name == arguments.optimizer;
      });
  if (chosen == known.end()) {
    std::vector<std::string_view> names;
    for (const optimizer::Descriptor& descriptor : known) names.push_back(descriptor.name);
    return absl::InvalidArgumentError(
        fmt::format("--optimizer: unknown optimizer \"{}\"{} (known: {})", arguments.optimizer,
                    DidYouMean(arguments.optimizer, names), fmt::join(names, ", ")));
  }
  return plan::MemoryOptions{
      .elements = static_cast<double>(simulation->size_bytes) / kElementBytes,
      .ranks = arguments.ranks,
      .updates = chosen->optimizer != optimizer::Optimizer::kNone,
      .states = static_cast<std::uint32_t>(chosen->states.size())};
}

std::uint64_t Rounded(double bytes) { return static_cast<std::uint64_t>(std::llround(bytes)); }

std::string BytesText(double bytes) { return HumanBytes(Rounded(bytes)); }

// "-" without an uplink byte, as in a plan for one rack.
std::string PerByteText(double bytes, double uplink) {
  return uplink > 0 ? fmt::format("{:.3f}", bytes / uplink) : "-";
}

std::string MemoryTableOf(const std::string& first, const std::vector<MemoryLine>& lines) {
  Table table({{first},
               {"UPLINK OUT", Align::kRight},
               {"UPLINK IN", Align::kRight},
               {"READ", Align::kRight},
               {"WRITTEN", Align::kRight},
               {"PER UPLINK BYTE", Align::kRight},
               {"AT LEAST", Align::kRight},
               {"PER UPLINK BYTE", Align::kRight},
               {""}});
  for (const MemoryLine& line : lines) {
    if (!line.refusal.empty()) {
      table.Add({line.name, "-", "-", "-", "-", "-", "-", "-", line.refusal});
      continue;
    }
    const plan::DaemonMemory& memory = line.memory;
    const plan::MemoryTraffic all = memory.all();
    table.Add({line.name, BytesText(memory.sent), BytesText(memory.received), BytesText(all.read),
               BytesText(all.written), PerByteText(all.all(), memory.uplink()),
               BytesText(memory.touched), PerByteText(memory.touched, memory.uplink()), ""});
  }
  return table.Text();
}

OrderedJson MemoryJsonOf(const char* kind, const MemoryLine& line) {
  if (!line.refusal.empty()) return {{kind, line.name}, {"refused", line.refusal}};
  const plan::DaemonMemory& memory = line.memory;
  const auto traffic = [](const plan::MemoryTraffic& bytes) {
    return OrderedJson{{"read_bytes", Rounded(bytes.read)},
                       {"written_bytes", Rounded(bytes.written)}};
  };
  OrderedJson json{{kind, line.name},
                   {"uplink_sent_bytes", Rounded(memory.sent)},
                   {"uplink_received_bytes", Rounded(memory.received)},
                   {"landing", traffic(memory.landing)},
                   {"sums", traffic(memory.sums)},
                   {"update", traffic(memory.update)},
                   {"sending", traffic(memory.sending)},
                   {"memory_bytes", Rounded(memory.all().all())},
                   {"touched_bytes", Rounded(memory.touched)}};
  if (memory.uplink() > 0) {
    json["memory_per_uplink_byte"] = memory.all().all() / memory.uplink();
    json["touched_per_uplink_byte"] = memory.touched / memory.uplink();
  }
  return json;
}

int PrintMemory(const PlanArguments& arguments, const Options& options,
                const plan::MemoryOptions& memory, bool of_planners,
                const std::vector<MemoryLine>& lines) {
  std::string text;
  if (options.output == Output::kJson) {
    OrderedJson json{{"size_bytes", Rounded(memory.elements * kElementBytes)},
                     {"ranks", arguments.ranks},
                     {"optimizer", arguments.optimizer},
                     {of_planners ? "planners" : "daemons", OrderedJson::array()}};
    for (const MemoryLine& line : lines) {
      json[of_planners ? "planners" : "daemons"].push_back(
          MemoryJsonOf(of_planners ? "planner" : "daemon", line));
    }
    text = json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  } else {
    text = MemoryTableOf(of_planners ? "PLANNER" : "DAEMON", lines);
  }
  const absl::Status status = WriteOut("", text);
  return status.ok() ? static_cast<int>(kOk) : ReportPlanError(status);
}

int MemoryOfPlanners(const PlanArguments& arguments, const Options& options,
                     const plan::MemoryOptions& memory) {
  const absl::StatusOr<PlanNetwork> network = LoadNetwork(arguments);
  if (!network.ok()) return ReportPlanError(network.status());
  std::vector<MemoryLine> lines;
  for (const plan::Planner& planner : plan::Planners()) {
    plan::PlannerOptions search{.seed = arguments.seed, .starts = 1};
    search.rules = network->RulesOrNull();
    MemoryLine& line = lines.emplace_back(MemoryLine{std::string(planner.name), {}, ""});
    const absl::StatusOr<plan::Forest> forest = plan::MakePlan(planner, network->topology, search);
    if (!forest.ok()) {
      line.refusal = Printable(std::string(forest.status().message()));
      continue;
    }
    line.memory = plan::SumOf(plan::MemoryOf(network->topology, *forest, memory));
  }
  return PrintMemory(arguments, options, memory, true, lines);
}

}  // namespace

int PlanMemory(const PlanArguments& arguments, const Options& options) {
  const absl::StatusOr<plan::MemoryOptions> memory = MemoryOptionsOf(arguments);
  if (!memory.ok()) return ReportPlanError(memory.status());
  if (arguments.plan.empty()) return MemoryOfPlanners(arguments, options, *memory);
  const absl::StatusOr<VerifiedPlan> plan = LoadVerifiedPlan(arguments);
  if (!plan.ok()) return ReportPlanError(plan.status());
  const plan::Topology& topology = plan->network.topology;
  const std::vector<plan::DaemonMemory> daemons = plan::MemoryOf(topology, plan->forest, *memory);
  std::vector<MemoryLine> lines;
  for (const plan::DaemonMemory& daemon : daemons) {
    lines.push_back({topology.node(daemon.node).name, daemon, ""});
  }
  lines.push_back({"all", plan::SumOf(daemons), ""});
  return PrintMemory(arguments, options, *memory, false, lines);
}

}  // namespace phub::client::cli
