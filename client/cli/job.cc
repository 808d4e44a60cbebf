// phubctl job list, phubctl job get; the other commands of `job` are in stalls.cc, dump.cc,
// trace.cc and job_changes.cc.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/exchange_text.h"
#include "client/cli/job_name.h"
#include "client/cli/job_state.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;

std::string WorkersText(const v1::JobInfo& job) {
  std::uint32_t live = 0;
  for (const v1::WorkerInfo& worker : job.workers())
    if (worker.state() == "live") ++live;
  return fmt::format("{}/{}", live, job.world_size());
}

std::string JobsTable(const v1::ListJobsResponse& response, bool wide) {
  std::vector<Table::Column> columns = {{"TENANT"},
                                        {"JOB"},
                                        {"STATE"},
                                        {"WORKERS", Align::kRight},
                                        {"ITERATION", Align::kRight},
                                        {"EACH", Align::kRight},
                                        {"KEYS", Align::kRight},
                                        {"PARAMETERS", Align::kRight},
                                        {"MEMORY", Align::kRight},
                                        {"AGE", Align::kRight}};
  if (wide) {
    columns.insert(columns.end(),
                   {{"INCARNATION"}, {"CHUNK", Align::kRight}, {"ON LOSS"}, {"FAULT"}});
  }
  Table table(std::move(columns));
  for (const v1::JobInfo& job : response.jobs()) {
    std::vector<std::string> row = {job.tenant(),
                                    job.name(),
                                    StateText(job),
                                    WorkersText(job),
                                    IterationText(job),
                                    IterationTimeText(job),
                                    fmt::format("{}", job.key_count()),
                                    HumanBytes(job.parameter_bytes()),
                                    HumanBytes(job.memory_bytes()),
                                    HumanDuration(job.age_ns())};
    if (wide) {
      row.insert(row.end(), {job.incarnation(), HumanBytes(job.chunk_bytes()), job.on_loss(),
                             job.fault().empty() ? "-" : job.fault()});
    }
    table.Add(std::move(row));
  }
  return table.Text();
}

int ListJobs(const Options& options, const std::string& watch_text) {
  return ShowResponse<v1::ListJobsResponse>(
      options, watch_text,
      [&](v1::ListJobsResponse& response) {
        return CallListJobs(options, options.tenant, response);
      },
      [&](const v1::ListJobsResponse& response) {
        return JobsTable(response, /*wide=*/options.output == Output::kWide);
      });
}

std::string WorkersTable(const v1::JobInfo& job) {
  Table table({{"RANK", Align::kRight},
               {"STATE"},
               {"HOST"},
               {"PID", Align::kRight},
               {"LANES", Align::kRight},
               {"HEARTBEAT"},
               {"ADDRESS"}});
  for (const v1::WorkerInfo& worker : job.workers()) {
    const std::string state =
        worker.state() == "lost"
            ? fmt::format("lost: {} left", HumanDuration(worker.awaited_for_ns()))
            : worker.state();
    const bool has_come = worker.state() != "awaited";
    table.Add({fmt::format("{}", worker.rank()), state, has_come ? worker.host() : "-",
               has_come ? fmt::format("{}", worker.pid()) : "-",
               fmt::format("{}", worker.lanes_open()),
               has_come ? HumanDuration(worker.last_heartbeat_age_ns()) + " ago" : "-",
               has_come ? worker.address() : "-"});
  }
  return table.Text();
}

std::string AwaitedText(const v1::WorkerInfo& worker) {
  return fmt::format("rank {} ({}), at most {} more: {}", worker.rank(), worker.host(),
                     HumanDuration(worker.awaited_for_ns()), worker.loss());
}

std::string ApplyText(const v1::JobInfo& job) {
  std::string text = job.apply();
  if (job.clip_norm() > 0.0) text += fmt::format(", clip_norm {}", job.clip_norm());
  if (job.skip_nonfinite()) text += ", skip_nonfinite";
  return text;
}

std::string SumText(const v1::JobInfo& job) {
  if (job.sum_block() == 0) return job.sum();
  return fmt::format("{}, blocks of {}", job.sum(), job.sum_block());
}

// "report: 3 sums not finite (4 gradients); first: rank 2 (node5), key fc1, iteration 412"
std::string ScreeningText(const v1::JobInfo& job) {
  if (job.nonfinite_sums() == 0) return job.screening();
  return fmt::format("{}: {} sums not finite ({} gradients); first: {}", job.screening(),
                     job.nonfinite_sums(), job.nonfinite_gradients(), job.nonfinite_first());
}

// "iteration 40 in /data/digits on node5, 3m ago"
std::string CheckpointText(const v1::SavedState& state) {
  return fmt::format("iteration {} in {} on {}, {} {} ago", state.iteration(), state.directory(),
                     state.host(), state.loaded() ? "loaded" : "saved",
                     HumanDuration(state.age_ns()));
}

// Starts with an empty line. Empty if no lane is open.
std::string LanesTable(const v1::JobInfo& job) {
  Table table({{"RANK", Align::kRight}, {"CORE", Align::kRight}, {"LANE"}, {"WHY"}});
  for (const v1::WorkerInfo& worker : job.workers()) {
    for (const v1::LaneInfo& lane : worker.lanes()) {
      table.Add({fmt::format("{}", worker.rank()), fmt::format("{}", lane.core()), lane.lane(),
                 lane.reason().empty() ? "-" : lane.reason()});
    }
  }
  return table.empty() ? "" : "\n" + table.Text();
}

// Starts with an empty line. Empty if the job has no groups. ROUND and LAST RANK are means: from a
// round's first gradient to its last, and for how long it waited for its last rank alone.
std::string GroupsTable(const v1::JobInfo& job) {
  Table table({{"GROUP"},
               {"ID", Align::kRight},
               {"RANKS"},
               {"CLASS"},
               {"KEYS", Align::kRight},
               {"PUSHED", Align::kRight},
               {"ROUNDS", Align::kRight},
               {"ROUND", Align::kRight},
               {"LAST RANK", Align::kRight}});
  for (const v1::GroupInfo& group : job.groups()) {
    table.Add({Printable(group.name()) + (group.removing() ? " (being removed)" : ""),
               fmt::format("{}", group.id()), group.ranks(),
               fmt::format("{}", fmt::join(group.priority_classes(), ", ")),
               fmt::format("{}", group.key_count()), HumanBytes(group.gradient_bytes()),
               fmt::format("{}", group.rounds()), MeanText(group.round_ns(), group.rounds()),
               MeanText(group.straggler_wait_ns(), group.rounds())});
  }
  if (table.empty()) return "";
  const std::string more =
      job.groups_omitted() == 0 ? "" : fmt::format("and {} more groups\n", job.groups_omitted());
  return "\n" + table.Text() + more;
}

// "1200, 3.1 ms each, the last 2 ms ago"
std::string ProgressText(const v1::JobInfo& job) {
  std::string text = IterationText(job);
  if (job.iteration_ns() > 0) text += fmt::format(", {} each", IterationTimeText(job));
  if (job.iteration_age_ns() > 0) {
    text += fmt::format(", the last {} ago", HumanDuration(job.iteration_age_ns()));
  }
  return text;
}

std::string JobText(const v1::JobInfo& job, bool wide) {
  Table facts({{"JOB"}, {fmt::format("{}/{}", Printable(job.tenant()), Printable(job.name()))}});
  facts.Add({"state", StateText(job)});
  if (!job.fault().empty()) facts.Add({"fault", job.fault()});
  facts.Add({"incarnation", job.incarnation()});
  facts.Add({"age", HumanDuration(job.age_ns())});
  facts.Add({"workers", fmt::format("{} live", WorkersText(job))});
  if (job.iteration() > 0) facts.Add({"iteration", ProgressText(job)});
  facts.Add({"keys", fmt::format("{}, {}", job.key_count(), HumanBytes(job.parameter_bytes()))});
  facts.Add({"memory reserved", HumanBytes(job.memory_bytes())});
  facts.Add({"chunk", HumanBytes(job.chunk_bytes())});
  facts.Add({"slots per lane", fmt::format("{}", job.slots_per_lane())});
  facts.Add({"on loss", job.on_loss() != "wait"
                            ? job.on_loss()
                            : fmt::format("wait {}{}", HumanDuration(job.wait_timeout_ns()),
                                          job.restart() ? ", restart" : "")});
  facts.Add({"screening", ScreeningText(job)});
  facts.Add({"apply", ApplyText(job)});
  if (!job.sum().empty()) facts.Add({"sum", SumText(job)});
  for (const auto& [way, cores] : CoresBySumWay(job)) {
    const bool is_list = cores.find_first_of(",-") != std::string::npos;
    facts.Add({fmt::format("sums of core{} {}", is_list ? "s" : "", cores), way});
  }
  if (job.has_exchange()) AddExchange(job.exchange(), facts);
  for (const v1::WorkerInfo& worker : job.workers()) {
    if (worker.state() == "lost") facts.Add({"waiting for", AwaitedText(worker)});
  }
  for (const v1::WorkerInfo& worker : job.lost_elsewhere()) {
    facts.Add({"waiting for", AwaitedText(worker) + " (in another rack)"});
  }
  for (const std::string& hint : job.waiting_hints()) facts.Add({"hint", Printable(hint)});
  if (job.has_saved_state()) facts.Add({"checkpoint", CheckpointText(job.saved_state())});
  if (!job.encryption().empty()) facts.Add({"encryption", job.encryption()});
  std::string text = facts.Text() + "\n";
  if (job.has_exchange()) {
    const std::string exchange = ExchangeTables(job.exchange(), wide);
    if (!exchange.empty()) text += exchange + "\n";
  }
  return text + WorkersTable(job) + LanesTable(job) + GroupsTable(job);
}

struct JobQuery {
  std::string name;
  std::string watch_text;
};

int GetJob(const Options& options, const JobQuery& query) {
  JobName job;
  if (grpc::Status status = FindJob(options, query.name, job); !status.ok()) {
    return Report(status, options);
  }
  v1::GetJobRequest request;
  request.set_tenant(job.tenant);
  request.set_job(job.name);
  return ShowAnswer(
      options, query.watch_text, &v1::Admin::Stub::GetJob, request,
      [&](const v1::JobInfo& info) { return JobText(info, options.output == Output::kWide); });
}

}  // namespace

void AddJob(Subcommand parent, const Options& options, Command& command) {
  const Subcommand job = parent.AddSubcommand("job", "List, inspect, save and end jobs");
  job.SetFooter(
      "Examples:\n"
      "  phubctl job list\n"
      "  phubctl job get digits --watch=5s\n"
      "  phubctl job get acme/digits\n"
      "  phubctl job stalls digits --watch\n"
      "  phubctl job dump digits\n"
      "  phubctl job trace digits trace.json\n"
      "  phubctl job save digits /var/lib/phub/digits");

  const Subcommand list = job.AddSubcommand("list", "List running and recently ended jobs");
  const auto watch_text = std::make_shared<std::string>();
  AddWatch(list, *watch_text);
  list.OnNamed(
      [&, watch_text] { command = [&, watch_text] { return ListJobs(options, *watch_text); }; });

  const Subcommand get =
      job.AddSubcommand("get", "Show a job, its workers, and the transports of their lanes");
  const auto query = std::make_shared<JobQuery>();
  get.AddOption("NAME", query->name, "Name of the job, or TENANT/NAME").Required().TypeName("");
  AddWatch(get, query->watch_text);
  get.OnNamed([&, query] { command = [&, query] { return GetJob(options, *query); }; });

  AddStalls(job, options, command);
  AddDump(job, options, command);
  AddTrace(job, options, command);
  AddJobEvict(job, options, command);
  AddJobSave(job, options, command);
}

}  // namespace phub::client::cli
