// phubctl plan: the commands and their options.
#include "client/cli/plan.h"

#include <fmt/core.h>

#include <functional>
#include <memory>

#include "common/base/ids.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr const char* kBestPieces = "the fastest number";

using Run = int (*)(const PlanArguments&, const Options&);

// For commands with NetworkOptions.
template <Run kRun>
int OnNetwork(const PlanArguments& arguments, const Options& options) {
  if (arguments.topology.empty() && arguments.sketch.empty()) {
    fmt::print(stderr, "phubctl: --topology or --sketch is required\nSee: phubctl plan --help\n");
    return kUsage;
  }
  return kRun(arguments, options);
}

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

  Argument AddTopologyOption(Subcommand app) {
    return app
        .AddOption("-t,--topology", arguments_->topology,
                   "torus:4x4 mesh: ring: switch: fattree:4x8@2 racks:4x8@4 bigraph:4x8 random: "
                   "fred:64,3, "
                   "with ,bandwidth= ,latency= ,aggregate; or a .toml or .json file")
        .TypeName("TOPOLOGY");
  }
  void TopologyOption(Subcommand app) { AddTopologyOption(app).Required(); }
  void PlanArgument(Subcommand app) {
    app.AddOption("plan", arguments_->plan, "Plan file (.json, or MSCCL .xml)").Required();
  }
  void SizeOptions(Subcommand app, const char* pieces_default) {
    app.AddOption("-s,--size", arguments_->size, "Total size of the data").ShowDefault();
    app.AddOption(
        "--pieces", arguments_->pieces,
        fmt::format("Number of pieces to cut the data into (default: {})", pieces_default));
    app.AddOption("--sum-rate", arguments_->sum_rate,
                  "Rate at which a member sums, such as 20GB/s (default: unlimited)");
    app.AddOption("--optimizer-rate", arguments_->optimizer_rate,
                  "Rate at which a home runs the optimizer (default: unlimited)");
    app.AddFlag("--lockstep", arguments_->lockstep, "Start a step only after the previous one");
  }
  void SearchOptions(Subcommand app) {
    app.AddOption("--starts", arguments_->starts, "Number of random starts of searching planners");
    app.AddOption("--seed", arguments_->seed, "Random seed of the search").ShowDefault();
  }
  void OutOption(Subcommand app) {
    // These commands have only one format, so -o names a file here. The names of formats still mean
    // standard output, as with other commands.
    app.AddOption("-o,-O,--out", arguments_->out, "File to write (default: standard output)")
        .TypeName("FILE")
        .Transform([](std::string text) {
          return text == "json" || text == "table" ? std::string() : text;
        });
  }
  // For commands that take a sketch or a topology, or both.
  void NetworkOptions(Subcommand app) {
    AddTopologyOption(app);
    app.AddOption(
           "--sketch", arguments_->sketch,
           "Rules for plans: a sketch of TACCL (.json; instead of --topology), or phub's own "
           "for any topology (.toml)")
        .TypeName("FILE");
    ProfileOptions(app);
  }
  Argument ProfileOptions(Subcommand app) {
    const Argument profile = app.AddOption("--profile", arguments_->profile,
                                           "Profile of a node of TACCL's sketch (.json)")
                                 .TypeName("FILE");
    app.AddOption("--node", arguments_->node,
                  "Kind of node: NDv2, DGX2, HubAndSpoke or custom (default: by the profile)")
        .TypeName("KIND");
    app.AddOption("--chunk", arguments_->chunk,
                  "Size of a chunk in the profile (default: by its name, or 1MiB)")
        .TypeName("SIZE");
    app.AddOption(
           "--time-unit", arguments_->time_unit,
           "Unit of the costs in the profile (default: 1us; 100ns if its name ends in _32KB, "
           "10ns for _1KB)")
        .TypeName("DURATION");
    return profile;
  }
  void ProbeOptions(Subcommand app) {
    const auto duration = [](const std::string& text) {
      const auto parsed = ParseDuration(text);
      if (parsed && *parsed > 0) return std::string();
      return fmt::format("\"{}\" is not a duration such as \"500ms\" or \"1s\"", text);
    };
    const auto bytes = [](const std::string& text) {
      const auto parsed = ParseBytes(text);
      if (parsed && *parsed > 0) return std::string();
      return fmt::format("\"{}\" is not a size such as \"1GiB\"", text);
    };
    app.AddOption("-s,--size", arguments_->size, "Total size of the data, to predict plans for")
        .ShowDefault();
    app.AddOption("--duration", arguments_->duration, "Duration of one probe, 10ms to 10s")
        .TypeName("DURATION")
        .Check(duration)
        .ShowDefault();
    app.AddOption("--bytes", arguments_->bytes,
                  "Maximum data of one probe, up to 4GiB (default: 1GiB)")
        .TypeName("SIZE")
        .Check(bytes);
    app.AddOption("--repeat", arguments_->repeat, "Probes of each pair of racks; the best counts")
        .InRange(1, 100)
        .ShowDefault();
    app.AddOption("--topology-out", arguments_->topology_out,
                  "Write the measured topology to this file (.json)")
        .TypeName("FILE");
    app.AddOption("--plan-out", arguments_->plan_out,
                  "Write the proposed plan to this file (.json); new jobs use it with plan=FILE")
        .TypeName("FILE");
    // The plan of --plan-out is for the topology before --apply, so they exclude each other.
    app.AddFlag("--apply", arguments_->apply,
                "Plan new jobs for the measured topology (racks with topology = \"probe\")")
        .Excludes("--plan-out");
    app.AddFlag("--show", arguments_->show,
                "Show the topology that new jobs are planned for, without measuring")
        .Excludes("--apply");
  }
  void GroupOptions(Subcommand app) {
    TopologyOption(app);
    app.AddOption("--groups", arguments_->groups, "File of groups (.toml)").TypeName("FILE");
    constexpr int kDegreeMax = 4096;
    for (const auto& [option, degree, what] :
         {std::tuple{"--mp", &arguments_->mp, "Members of a tensor (model) group (default: 1)"},
          std::tuple{"--pp", &arguments_->pp, "Pipeline stages (default: 1)"},
          std::tuple{"--dp", &arguments_->dp, "Data replicas (default: 1)"}})
      app.AddOption(option, *degree, what).InRange(1, kDegreeMax).Excludes("--groups");
    app.AddFlag("--least-load", arguments_->least_load,
                "Use more spines to keep LOAD at BOUND, even if members' links take longer");
    app.AddOption("-s,--size", arguments_->size, "Data of each group").ShowDefault();
    app.AddOption("--pieces", arguments_->pieces,
                  "Number of pieces to cut the data into (default: 64, fewer for large plans)")
        .InRange(1, 4096);
    app.AddOption("-o,-O,--out", arguments_->out,
                  "Folder for the plans, one file for each group; or json for JSON output")
        .TypeName("FOLDER")
        .Transform([](std::string text) { return text == "table" ? std::string() : text; });
  }
  PlanArguments& arguments() { return *arguments_; }

 private:
  const Options& options_;
  Command& command_;
  std::shared_ptr<PlanArguments> arguments_ = std::make_shared<PlanArguments>();
};

void AddProbe(Registrar& registrar, Subcommand plan) {
  const Subcommand probe = registrar.Add(
      plan, "probe", "Measure the links between racks, and propose a plan", PlanProbe);
  registrar.ProbeOptions(probe);
  probe.SetFooter(
      "Asks one daemon (--endpoint) to have the racks in its `racks` setting measure latency and\n"
      "bandwidth to each other, two racks at a time, over connections like those of jobs. Prints\n"
      "both matrices, the groups of racks, a better order of racks, and how much faster the best\n"
      "plan is than the present one. Needs the role operator or admin. The probes take bandwidth\n"
      "from running jobs: duration x repeat for each pair of racks, and more if there are "
      "groups.\n\n"
      "Racks with topology = \"probe\" measure when they start. --apply plans new jobs for the "
      "new\n"
      "measurement; --show prints the present topology.\n\n"
      "Examples:\n"
      "  phubctl -e rack0:7700 plan probe\n"
      "  phubctl -e rack0:7700 plan probe --apply                    if topology = \"probe\"\n"
      "  phubctl -e rack0:7700 plan probe --plan-out plan.json       for new jobs, at once\n"
      "  phubctl -e rack0:7700 plan probe --topology-out racks.json  for phubd's `topology`\n\n"
      "Exit codes: 0 done, 1 a probe failed (the message names the rack), 2 wrong usage, 4 not\n"
      "allowed, 5 the daemon at --endpoint does not answer.");
}

void AddSketch(Registrar& registrar, Subcommand plan) {
  const Subcommand sketch = registrar.Add(
      plan, "sketch", "Expand a sketch of TACCL to a topology of all its GPUs", PlanSketch);
  sketch.AddOption("sketch", registrar.arguments().sketch, "Sketch file (.json)").Required();
  registrar.ProfileOptions(sketch).Required();
  registrar.OutOption(sketch);
  sketch.SetFooter(
      "A sketch describes one node with GPUs: which of them have switches, and which send\n"
      "to other nodes. A profile has the costs of their links. This command writes a\n"
      "topology (.toml) and prints how many ranks and links it has. GPUs are named g0, g1,\n"
      "..., node by node. A switch becomes a node with one port per GPU, so that a GPU's\n"
      "bandwidth is limited over all links of the switch together.\n"
      "\n"
      "Both files are read as TACCL publishes them. A field that is not supported is an\n"
      "error.\n"
      "\n"
      "Example:\n"
      "  phubctl plan sketch sk1-ndv2-n2.json --profile topo-ndv2-1MB.json -o ndv2.toml\n"
      "  phubctl plan compare -t ndv2.toml --size 16MiB\n"
      "\n"
      "A topology has no rules about members, such as whose data a GPU may send. For plans\n"
      "that follow them, pass the sketch itself: plan make --sketch sk1-ndv2-n2.json\n"
      "--profile ...");
}

void AddMemory(Registrar& registrar, Subcommand plan) {
  const Subcommand memory =
      registrar.Add(plan, "memory", "Compute the memory that daemons read and write for a plan",
                    OnNetwork<PlanMemory>);
  memory.AddOption("plan", registrar.arguments().plan,
                   "Plan file (.json, or MSCCL .xml) (default: one line for each planner)");
  registrar.NetworkOptions(memory);
  memory
      .AddOption("-s,--size", registrar.arguments().size,
                 "Gradients of one rank, in elements of 4 bytes")
      .ShowDefault();
  memory.AddOption("--ranks", registrar.arguments().ranks, "Number of ranks in each rack")
      .InRange(1, kRanksMax)
      .ShowDefault();
  memory
      .AddOption("--optimizer", registrar.arguments().optimizer,
                 "Optimizer in the daemon, such as momentum; none: an all-reduce")
      .ShowDefault();
  memory.SetFooter(
      "READ and WRITTEN are bytes of the daemon's memory in one exchange, if ranks are connected\n"
      "over a network: by sums and the optimizer, and by messages that arrive and leave. AT LEAST\n"
      "counts each byte once, without the staging of gradients. Daemons count the same:\n"
      "phubctl job get -o wide.\n\n"
      "Examples:\n"
      "  phubctl plan memory -t switch:4 --ranks 4\n"
      "  phubctl plan memory plan.json -t racks:2x2 --size 97.5MiB --optimizer momentum");
}

void AddMake(Registrar& registrar, Subcommand plan) {
  const Subcommand make =
      registrar.Add(plan, "make", "Make a plan and print it as JSON", OnNetwork<PlanMake>);
  registrar.NetworkOptions(make);
  make.AddOption("-p,--planner", registrar.arguments().planner,
                 "Name of a planner, or best for the fastest one at --size")
      .ShowDefault();
  make.AddFlag("--reorder", registrar.arguments().reorder, "Search for a better order of ranks");
  make.SetFooter(
      "--sketch restricts plans. A sketch of TACCL has its own topology and needs\n"
      "--profile. phub's own sketches are TOML, for any topology. This one lets only host 0\n"
      "of each rack talk across:\n"
      "  group_size = 8\n"
      "  [between_groups]\n"
      "  senders = [0]\n"
      "  receivers = [0]\n"
      "\n"
      "Only the planner greedy follows rules about members; all planners avoid forbidden\n"
      "links.\n"
      "\n"
      "Examples:\n"
      "  phubctl plan make -t torus:4x4 -p multitree -o plan.json\n"
      "  phubctl plan make -t racks:4x8@4 --sketch gateways.toml -p greedy -o plan.json\n"
      "  phubctl plan make --sketch sketch.json --profile profile.json -p greedy -o plan.json");
  registrar.SizeOptions(make, kBestPieces);
  registrar.SearchOptions(make);
  registrar.OutOption(make);
}

void AddGroups(Registrar& registrar, Subcommand plan) {
  const Subcommand groups = registrar.Add(
      plan, "groups", "Plan groups of members that exchange at the same time", PlanGroups);
  registrar.GroupOptions(groups);
  groups.SetFooter(
      "Makes one plan for each group, for networks whose switches sum: leaves with members, and\n"
      "spines that connect all leaves. The groups of a phase (tensor, pipeline, data) exchange at\n"
      "the same time and are planned together: their data are divided among the spines, so that\n"
      "the busiest cable between a leaf and a spine carries as little as possible. Different\n"
      "phases take turns. Planning only: jobs do not run groups yet.\n"
      "\n"
      "On FRED's network (fred:PORTS,MIDDLES) groups share no link, or take turns.\n"
      "\n"
      "--mp, --pp and --dp place tensor groups on consecutive ranks, then pipeline stages, then\n"
      "data replicas. A file of groups is TOML:\n"
      "  [[group]]\n"
      "  name = \"a\"\n"
      "  phase = \"data\"      # tensor, pipeline or data (default: data)\n"
      "  ranks = [0, 4, 8]   # or members = [\"m0\", ...]\n"
      "  size = \"64MiB\"      # (default: --size)\n"
      "\n"
      "SPINES lists spines with the shares of the group's data. SLOTS counts the sums that "
      "switches\n"
      "keep for a group. ALONE and TOGETHER are simulated times. LOAD is the time of the busiest\n"
      "cable, BOUND is the least that any plan can reach, and MEMBERS is the time of the members'\n"
      "own links. CONFLICTS counts the cables that several groups of a phase use, and PAIRS the\n"
      "pairs of a cable and a group; no plan with this load has fewer than AT LEAST.\n"
      "\n"
      "Examples:\n"
      "  phubctl plan groups -t fattree:8x8,aggregate --mp 4 --pp 2 --dp 8\n"
      "  phubctl plan groups -t net.toml --groups groups.toml -o plans\n"
      "  phubctl plan verify plans/a.json -t net.toml");
}

void AddConversions(Registrar& registrar, Subcommand plan) {
  const Subcommand to_xml = registrar.Add(plan, "export", "Convert to MSCCL XML", PlanExport);
  registrar.PlanArgument(to_xml);
  registrar.TopologyOption(to_xml);
  registrar.OutOption(to_xml);

  const Subcommand from_xml = registrar.Add(plan, "import", "Convert from MSCCL XML", PlanImport);
  registrar.PlanArgument(from_xml);
  registrar.TopologyOption(from_xml);
  registrar.OutOption(from_xml);

  AddSketch(registrar, plan);
}

}  // namespace

void AddPlan(Subcommand parent, const Options& options, Command& command) {
  const Subcommand plan =
      parent.AddSubcommand("plan", "Plan exchanges between racks; only `probe` calls a daemon");
  Registrar registrar(options, command);

  const Subcommand topology = plan.AddSubcommand("topology", "Show topologies");
  const Subcommand show =
      registrar.Add(topology, "show", "Show the nodes and links of a topology", TopologyShow);
  show.AddOption("topology", registrar.arguments().topology, "Name or file").Required();

  AddMake(registrar, plan);

  const Subcommand verify = registrar.Add(
      plan, "verify", "Verify a plan and show its load on links", OnNetwork<PlanVerify>);
  registrar.PlanArgument(verify);
  registrar.NetworkOptions(verify);

  const Subcommand bound =
      registrar.Add(plan, "bound", "Compute lower bounds for the time of plans", PlanBound);
  registrar.TopologyOption(bound);
  bound.AddOption("-s,--size", registrar.arguments().size, "Total size of the data").ShowDefault();

  const Subcommand simulate = registrar.Add(
      plan, "simulate", "Simulate plans and print their times", OnNetwork<PlanSimulate>);
  simulate
      .AddOption("plan", registrar.arguments().plans,
                 "Plan file (.json, or MSCCL .xml); several: all exchange at the same time")
      .Required();
  registrar.NetworkOptions(simulate);
  registrar.SizeOptions(simulate, "1");
  simulate.AddOption("--trace", registrar.arguments().trace, "Write a Chrome trace to this file");

  AddMemory(registrar, plan);

  const Subcommand compare =
      registrar.Add(plan, "compare", "Compare the plans of all planners", OnNetwork<PlanCompare>);
  registrar.NetworkOptions(compare);
  registrar.SizeOptions(compare, kBestPieces);
  registrar.SearchOptions(compare);

  const Subcommand draw = registrar.Add(
      plan, "draw", "Draw the trees of a plan, or several plans together, as SVG", PlanDraw);
  draw.AddOption("plan", registrar.arguments().plans,
                 "Plan file (.json, or MSCCL .xml); several: each plan in its own colour")
      .Required();
  registrar.TopologyOption(draw);
  draw.AddOption("--home", registrar.arguments().home, "Draw only the trees of this member");
  registrar.OutOption(draw);

  AddGroups(registrar, plan);
  AddConversions(registrar, plan);
  AddProbe(registrar, plan);

  plan.SetFooter(
      "Examples:\n"
      "  phubctl plan compare --topology racks:4x8@4 --size 97.5MiB\n"
      "  phubctl plan make --topology torus:4x4 --planner multitree -o plan.json\n"
      "  phubctl plan verify plan.json --topology torus:4x4\n"
      "  phubctl plan draw plan.json --topology torus:4x4 --home m5 -o plan.svg\n"
      "  phubctl plan sketch sketch.json --profile profile.json -o gpus.toml\n"
      "  phubctl plan make -t racks:4x8@4 --sketch gateways.toml -p greedy -o plan.json\n"
      "  phubctl plan groups -t fattree:8x8,aggregate --mp 4 --pp 2 --dp 8\n"
      "  phubctl -e rack0:7700 plan probe");
}

}  // namespace phub::client::cli
