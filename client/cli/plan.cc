// phubctl plan: the commands and their options.
#include "client/cli/plan.h"

#include <fmt/core.h>

#include <functional>
#include <memory>

#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Run = int (*)(const PlanArguments&, const Options&);

class Registrar {
 public:
  Registrar(const Options& options, Command& command) : options_(options), command_(command) {}

  Subcommand Add(Subcommand parent, const char* name, const char* description, Run run) {
    const Subcommand app = parent.AddSubcommand(name, description);
    app.OnNamed([this_options = &options_, command = &command_, arguments = arguments_, run] {
      *command = [this_options, arguments, run] { return run(*arguments, *this_options); };
    });
    return app;
  }

  void TopologyOption(Subcommand app) {
    app.AddOption("-t,--topology", arguments_->topology,
                  "torus:4x4 mesh: ring: switch: fattree:4x8@2 racks:4x8@4 bigraph:4x8 random:, "
                  "with ,bandwidth= ,latency= ,aggregate; or a .toml or .json file")
        .TypeName("TOPOLOGY")
        .Required();
  }
  void PlanArgument(Subcommand app) {
    app.AddOption("plan", arguments_->plan, "The plan's file (.json, or MSCCL .xml)").Required();
  }
  void SizeOptions(Subcommand app, const char* pieces_default) {
    app.AddOption("-s,--size", arguments_->size, "Bytes of all data").ShowDefault();
    app.AddOption("--pieces", arguments_->pieces,
                  fmt::format("Into how many pieces data are cut (default: {})", pieces_default));
    app.AddOption("--sum-rate", arguments_->sum_rate, "How fast a member sums: 20GB/s");
    app.AddOption("--optimizer-rate", arguments_->optimizer_rate, "How fast a home updates");
    app.AddFlag("--lockstep", arguments_->lockstep, "One step after the other");
  }
  void SearchOptions(Subcommand app) {
    app.AddOption("--starts", arguments_->starts, "Random starts of planners that search");
    app.AddOption("--seed", arguments_->seed, "Of the search").ShowDefault();
  }
  void OutOption(Subcommand app) {
    // These commands have one format each, so their -o names a file. Who asks for a format all the
    // same, as everywhere else, gets standard output.
    app.AddOption("-o,-O,--out", arguments_->out, "File to write (default: standard output)")
        .TypeName("FILE")
        .Transform([](std::string text) {
          return text == "json" || text == "table" ? std::string() : text;
        });
  }
  void ProbeOptions(Subcommand app) {
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
    app.AddOption("-s,--size", arguments_->size, "Bytes of all data, of what plans would take")
        .ShowDefault();
    app.AddOption("--duration", arguments_->duration, "Of one probe of two racks, 10ms to 10s")
        .TypeName("DURATION")
        .Check(duration)
        .ShowDefault();
    app.AddOption("--bytes", arguments_->bytes, "Of one probe at most, to 4GiB (default: 1GiB)")
        .TypeName("SIZE")
        .Check(bytes);
    app.AddOption("--repeat", arguments_->repeat, "Probes of each two racks; the best counts")
        .InRange(1, 100)
        .ShowDefault();
    app.AddOption("--topology-out", arguments_->topology_out,
                  "Write the measured topology to this file (.json)")
        .TypeName("FILE");
    app.AddOption("--plan-out", arguments_->plan_out,
                  "Write the proposed plan to this file (.json): new jobs take it with plan=FILE")
        .TypeName("FILE");
    // With --plan-out the plan would be one for the topology that stood before.
    app.AddFlag("--apply", arguments_->apply,
                "Plan new jobs for what was measured (racks with topology = \"probe\")")
        .Excludes("--plan-out");
    app.AddFlag("--show", arguments_->show,
                "Measure nothing; show the topology that new jobs are planned for")
        .Excludes("--apply");
  }
  PlanArguments& arguments() { return *arguments_; }

 private:
  const Options& options_;
  Command& command_;
  std::shared_ptr<PlanArguments> arguments_ = std::make_shared<PlanArguments>();
};

void AddProbe(Registrar& registrar, Subcommand plan) {
  const Subcommand probe = registrar.Add(
      plan, "probe", "Measure between the racks' daemons, and what follows", PlanProbe);
  registrar.ProbeOptions(probe);
  probe.SetFooter(
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

void AddPlan(Subcommand parent, const Options& options, Command& command) {
  const Subcommand plan =
      parent.AddSubcommand("plan", "Exchange plans across racks; only `probe` needs daemons");
  Registrar registrar(options, command);
  constexpr const char* kBest = "as many as are best";

  const Subcommand topology = plan.AddSubcommand("topology", "Networks");
  const Subcommand show =
      registrar.Add(topology, "show", "A network's nodes and links", TopologyShow);
  show.AddOption("topology", registrar.arguments().topology, "A name or a file").Required();

  const Subcommand make = registrar.Add(plan, "make", "Make a plan, as JSON", PlanMake);
  registrar.TopologyOption(make);
  make.AddOption("-p,--planner", registrar.arguments().planner,
                 "A planner's name, or best: the fastest at --size")
      .ShowDefault();
  make.AddFlag("--reorder", registrar.arguments().reorder, "Look for a better order of ranks");
  registrar.SizeOptions(make, kBest);
  registrar.SearchOptions(make);
  registrar.OutOption(make);

  const Subcommand verify =
      registrar.Add(plan, "verify", "Is a plan right, and what it loads", PlanVerify);
  registrar.PlanArgument(verify);
  registrar.TopologyOption(verify);

  const Subcommand bound =
      registrar.Add(plan, "bound", "The least time any plan can take", PlanBound);
  registrar.TopologyOption(bound);
  bound.AddOption("-s,--size", registrar.arguments().size, "Bytes of all data").ShowDefault();

  const Subcommand simulate =
      registrar.Add(plan, "simulate", "How long a plan takes", PlanSimulate);
  registrar.PlanArgument(simulate);
  registrar.TopologyOption(simulate);
  registrar.SizeOptions(simulate, "1");
  simulate.AddOption("--trace", registrar.arguments().trace, "Write a Chrome trace to this file");

  const Subcommand compare =
      registrar.Add(plan, "compare", "All planners in one table", PlanCompare);
  registrar.TopologyOption(compare);
  registrar.SizeOptions(compare, kBest);
  registrar.SearchOptions(compare);

  const Subcommand draw = registrar.Add(plan, "draw", "A plan's trees as an SVG picture", PlanDraw);
  registrar.PlanArgument(draw);
  registrar.TopologyOption(draw);
  draw.AddOption("--home", registrar.arguments().home, "Only the trees of this member");
  registrar.OutOption(draw);

  const Subcommand to_xml = registrar.Add(plan, "export", "A plan as MSCCL XML", PlanExport);
  registrar.PlanArgument(to_xml);
  registrar.TopologyOption(to_xml);
  registrar.OutOption(to_xml);

  const Subcommand from_xml = registrar.Add(plan, "import", "MSCCL XML as a plan", PlanImport);
  registrar.PlanArgument(from_xml);
  registrar.TopologyOption(from_xml);
  registrar.OutOption(from_xml);

  AddProbe(registrar, plan);

  plan.SetFooter(
      "Examples:\n"
      "  phubctl plan compare --topology racks:4x8@4 --size 97.5MiB\n"
      "  phubctl plan make --topology torus:4x4 --planner multitree -o plan.json\n"
      "  phubctl plan verify plan.json --topology torus:4x4\n"
      "  phubctl plan draw plan.json --topology torus:4x4 --home m5 -o plan.svg\n"
      "  phubctl -e rack0:7700 plan probe");
}

}  // namespace phub::client::cli
