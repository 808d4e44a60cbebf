// phubctl plan: the commands and their options.
#include "client/cli/plan.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Run = int (*)(const PlanArguments&, const Options&);

class Registrar {
 public:
  Registrar(const Options& options, Command& command) : options_(options), command_(command) {}

  CLI::App& Add(CLI::App& parent, const char* name, const char* description, Run run) {
    CLI::App* app = parent.add_subcommand(name, description);
    app->callback([this_options = &options_, command = &command_, arguments = arguments_, run] {
      *command = [this_options, arguments, run] { return run(*arguments, *this_options); };
    });
    return *app;
  }

  void TopologyOption(CLI::App& app) {
    app.add_option("-t,--topology", arguments_->topology,
                   "torus:4x4 mesh: ring: switch: fattree:4x8@2 racks:4x8@4 bigraph:4x8 random:, "
                   "with ,bandwidth= ,latency= ,aggregate; or a .toml or .json file")
        ->type_name("TOPOLOGY")
        ->required();
  }
  void PlanArgument(CLI::App& app) {
    app.add_option("plan", arguments_->plan, "The plan's file (.json, or MSCCL .xml)")->required();
  }
  void SizeOptions(CLI::App& app, const char* pieces_default) {
    app.add_option("-s,--size", arguments_->size, "Bytes of all data")->capture_default_str();
    app.add_option("--pieces", arguments_->pieces,
                   fmt::format("Into how many pieces data are cut (default: {})", pieces_default));
    app.add_option("--sum-rate", arguments_->sum_rate, "How fast a member sums: 20GB/s");
    app.add_option("--optimizer-rate", arguments_->optimizer_rate, "How fast a home updates");
    app.add_flag("--lockstep", arguments_->lockstep, "One step after the other");
  }
  void SearchOptions(CLI::App& app) {
    app.add_option("--starts", arguments_->starts, "Random starts of planners that search");
    app.add_option("--seed", arguments_->seed, "Of the search")->capture_default_str();
  }
  void OutOption(CLI::App& app) {
    // These commands have one format each, so their -o names a file. Who asks for a format all the
    // same, as everywhere else, gets standard output.
    app.add_option("-o,-O,--out", arguments_->out, "File to write (default: standard output)")
        ->type_name("FILE")
        ->transform([](std::string text) {
          return text == "json" || text == "table" ? std::string() : text;
        });
  }
  void ProbeOptions(CLI::App& app) {
    const auto duration = [](const std::string& text) {
      const auto parsed = ParseDuration(text);
      if (parsed && *parsed > 0) return std::string();
      return fmt::format("\"{}\" is not a duration, like \"500ms\" or \"1s\"", text);
    };
    const auto bytes = [](const std::string& text) {
      const auto parsed = ParseBytes(text);
      if (parsed && *parsed > 0) return std::string();
      return fmt::format("\"{}\" is not a size, like \"1GiB\"", text);
    };
    app.add_option("-s,--size", arguments_->size, "Bytes of all data, of what plans would take")
        ->capture_default_str();
    app.add_option("--duration", arguments_->duration, "Of one probe of two racks, 10ms to 10s")
        ->type_name("DURATION")
        ->check(duration)
        ->capture_default_str();
    app.add_option("--bytes", arguments_->bytes, "Of one probe at most, to 4GiB (default: 1GiB)")
        ->type_name("SIZE")
        ->check(bytes);
    app.add_option("--repeat", arguments_->repeat, "Probes of each two racks; the best counts")
        ->check(CLI::Range(1, 100))
        ->capture_default_str();
    app.add_option("--topology-out", arguments_->topology_out,
                   "Write the measured topology to this file (.json)")
        ->type_name("FILE");
    app.add_option("--plan-out", arguments_->plan_out,
                   "Write the proposed plan to this file (.json): new jobs take it with plan=FILE")
        ->type_name("FILE");
    CLI::Option* const apply =
        app.add_flag("--apply", arguments_->apply,
                     "Plan new jobs for what was measured (racks with topology = \"probe\")");
    // The plan would be one for the topology that stood before.
    apply->excludes("--plan-out");
    app.add_flag("--show", arguments_->show,
                 "Measure nothing; show the topology that new jobs are planned for")
        ->excludes(apply);
  }
  PlanArguments& arguments() { return *arguments_; }

 private:
  const Options& options_;
  Command& command_;
  std::shared_ptr<PlanArguments> arguments_ = std::make_shared<PlanArguments>();
};

void AddProbe(Registrar& registrar, CLI::App& plan) {
  CLI::App& probe = registrar.Add(
      plan, "probe", "Measure between the racks' daemons, and what follows", PlanProbe);
  registrar.ProbeOptions(probe);
  probe.footer(
      "Asks one daemon (--endpoint) to have the racks of its `racks` measure latency and\n"
      "bandwidth to each other, two at a time, over connections as jobs' lanes are. Prints both\n"
      "matrices, the groups that they show, a better order of racks, and how much faster the best\n"
      "plan for them is than the one that is chosen now. For operators. It takes bandwidth from\n"
      "jobs meanwhile: duration x repeat for each two racks, and some more where there are "
      "groups.\n\n"
      "Racks with topology = \"probe\" have measured it themselves when they started; --apply has\n"
      "new jobs planned for what is measured now, --show tells what they are planned for.\n\n"
      "Examples:\n"
      "  phubctl -e rack0:7700 plan probe\n"
      "  phubctl -e rack0:7700 plan probe --apply                    where topology = \"probe\"\n"
      "  phubctl -e rack0:7700 plan probe --plan-out plan.json       for new jobs, at once\n"
      "  phubctl -e rack0:7700 plan probe --topology-out racks.json  for phubd's `topology`\n\n"
      "Exit codes: 0 done, 1 a probe failed (its rack is named), 2 wrong usage, 4 not allowed,\n"
      "5 the daemon that was asked does not answer.");
}

}  // namespace

void AddPlan(CLI::App& parent, const Options& options, Command& command) {
  CLI::App* plan =
      parent.add_subcommand("plan", "Exchange plans across racks; only `probe` needs daemons");
  Registrar registrar(options, command);
  constexpr const char* kBest = "as many as are best";

  CLI::App* topology = plan->add_subcommand("topology", "Networks");
  CLI::App& show = registrar.Add(*topology, "show", "A network's nodes and links", TopologyShow);
  show.add_option("topology", registrar.arguments().topology, "A name or a file")->required();

  CLI::App& make = registrar.Add(*plan, "make", "Make a plan, as JSON", PlanMake);
  registrar.TopologyOption(make);
  make.add_option("-p,--planner", registrar.arguments().planner,
                  "A planner's name, or best: the fastest at --size")
      ->capture_default_str();
  make.add_flag("--reorder", registrar.arguments().reorder, "Look for a better order of ranks");
  registrar.SizeOptions(make, kBest);
  registrar.SearchOptions(make);
  registrar.OutOption(make);

  CLI::App& verify =
      registrar.Add(*plan, "verify", "Is a plan right, and what it loads", PlanVerify);
  registrar.PlanArgument(verify);
  registrar.TopologyOption(verify);

  CLI::App& bound = registrar.Add(*plan, "bound", "The least time any plan can take", PlanBound);
  registrar.TopologyOption(bound);
  bound.add_option("-s,--size", registrar.arguments().size, "Bytes of all data")
      ->capture_default_str();

  CLI::App& simulate = registrar.Add(*plan, "simulate", "How long a plan takes", PlanSimulate);
  registrar.PlanArgument(simulate);
  registrar.TopologyOption(simulate);
  registrar.SizeOptions(simulate, "1");
  simulate.add_option("--trace", registrar.arguments().trace, "Write a Chrome trace to this file");

  CLI::App& compare = registrar.Add(*plan, "compare", "All planners in one table", PlanCompare);
  registrar.TopologyOption(compare);
  registrar.SizeOptions(compare, kBest);
  registrar.SearchOptions(compare);

  CLI::App& draw = registrar.Add(*plan, "draw", "A plan's trees as an SVG picture", PlanDraw);
  registrar.PlanArgument(draw);
  registrar.TopologyOption(draw);
  draw.add_option("--home", registrar.arguments().home, "Only the trees of this member");
  registrar.OutOption(draw);

  CLI::App& to_xml = registrar.Add(*plan, "export", "A plan as MSCCL XML", PlanExport);
  registrar.PlanArgument(to_xml);
  registrar.TopologyOption(to_xml);
  registrar.OutOption(to_xml);

  CLI::App& from_xml = registrar.Add(*plan, "import", "MSCCL XML as a plan", PlanImport);
  registrar.PlanArgument(from_xml);
  registrar.TopologyOption(from_xml);
  registrar.OutOption(from_xml);

  AddProbe(registrar, *plan);

  plan->footer(
      "Examples:\n"
      "  phubctl plan compare --topology racks:4x8@4 --size 97.5MiB\n"
      "  phubctl plan make --topology torus:4x4 --planner multitree -o plan.json\n"
      "  phubctl plan verify plan.json --topology torus:4x4\n"
      "  phubctl plan draw plan.json --topology torus:4x4 --home m5 -o plan.svg\n"
      "  phubctl -e rack0:7700 plan probe");
}

}  // namespace phub::client::cli
