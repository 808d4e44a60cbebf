// phubctl job evict, phubctl job save.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "client/checkpoint/checkpoint.h"
#include "client/cli/cli.h"
#include "client/cli/job_name.h"
#include "client/cli/output.h"
#include "client/cli/rack.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

struct Eviction {
  std::string job;
  std::string reason;
  bool yes = false;
};
struct Save {
  std::string job;
  std::string directory;
  std::string patience_text = "60s";
};

// Evicts the job at every daemon of the rack. Daemons that do not have the job are skipped.
int Evict(const Options& options, const Eviction& eviction) {
  JobName named;
  grpc::Status status = FindJob(options, eviction.job, named);
  if (!status.ok()) return Report(status, options);
  if (!Confirmed(eviction.yes,
                 fmt::format("End job {} for all its workers?", Printable(eviction.job)))) {
    return kUsage;
  }
  std::vector<RackMember> daemons;
  status = AskRack(options, daemons);
  if (!status.ok()) return Report(status, options);
  v1::EvictJobRequest request;
  request.set_tenant(named.tenant);
  request.set_job(named.name);
  request.set_reason(eviction.reason);
  bool evicted = false;
  v1::JobInfo job;
  for (const RackMember& daemon : daemons) {
    v1::JobInfo answer;
    status = Call(daemon.options, &v1::Admin::Stub::EvictJob, request, answer);
    if (status.ok()) {
      if (!evicted) job = answer;
      evicted = true;
      continue;
    }
    // Workers leave the other daemons as soon as the first one ends the job.
    const bool gone = status.error_code() == grpc::StatusCode::NOT_FOUND ||
                      status.error_code() == grpc::StatusCode::FAILED_PRECONDITION;
    if (!gone || (!evicted && &daemon == &daemons.back())) return Report(status, daemon.options);
  }
  if (options.output == Output::kJson) {
    fmt::print("{}", ToJson(job, /*compact=*/false));
  } else {
    fmt::print("{}\n", Printable(job.fault()));
  }
  return kOk;
}

// On a terminal, overwrites one line. Otherwise prints nothing.
void PrintProgress(const TransferProgress& progress) {
  if (isatty(STDERR_FILENO) == 0) return;
  switch (progress.phase) {
    case TransferProgress::Phase::kChoosing:
      fmt::print(stderr, "\r\033[Kchoosing an iteration, attempt {}", progress.attempt);
      return;
    case TransferProgress::Phase::kMoving:
      fmt::print(stderr, "\r\033[K{} of {}", HumanBytes(progress.bytes),
                 HumanBytes(progress.bytes_max));
      return;
    case TransferProgress::Phase::kSyncing: fmt::print(stderr, "\r\033[Kwriting to disk"); return;
  }
}

int SaveJob(const Options& options, const Save& save) {
  JobName named;
  if (grpc::Status found = FindJob(options, save.job, named); !found.ok()) {
    return Report(found, options);
  }
  std::vector<RackMember> rack;
  const grpc::Status asked = AskRack(options, rack);
  if (!asked.ok()) return Report(asked, options);
  std::vector<std::unique_ptr<v1::Admin::Stub>> stubs;
  std::vector<CheckpointDaemon> daemons;
  for (const RackMember& daemon : rack) {
    if (!daemon.status.ok()) return Report(daemon.status, daemon.options);
    std::shared_ptr<grpc::Channel> channel;
    if (grpc::Status made = Connect(daemon.options, channel); !made.ok()) {
      return Report(made, daemon.options);
    }
    stubs.push_back(v1::Admin::NewStub(channel));
    daemons.push_back({.endpoint = Target(daemon.options.endpoint),
                       .admin = stubs.back().get(),
                       .session = nullptr,
                       .session_id = {}});
  }
  TransferOptions transfer;
  transfer.call_timeout = options.timeout;
  transfer.idle_timeout = ParseDuration(save.patience_text).value_or(transfer.idle_timeout);
  transfer.progress = [](const TransferProgress& progress) {
    PrintProgress(progress);
    return true;
  };
  const absl::StatusOr<SavedCheckpoint> saved = SaveCheckpoint(
      daemons,
      {.tenant = named.tenant, .job = named.name, .incarnation = 0, .directory = save.directory},
      transfer);
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K");
  if (!saved.ok()) {
    return Report({static_cast<grpc::StatusCode>(saved.status().code()),
                   std::string(saved.status().message())},
                  options);
  }
  if (!saved->told.ok()) {
    fmt::print(stderr,
               "phubctl: the checkpoint is saved, but the workers could not be notified, so their "
               "errors will not name it: {}\n",
               Printable(MessageOf(saved->told)));
  }
  if (!saved->lockstep) {
    fmt::print(stderr,
               "phubctl: the keys of job {} are at different iterations; each was saved at its own "
               "iteration\n",
               save.job);
  }
  if (options.output == Output::kJson) {
    fmt::print(
        "{{\n \"iteration\": \"{}\",\n \"lockstep\": {},\n \"world_size\": {},\n \"keys\": {},\n"
        " \"bytes\": \"{}\"\n}}\n",
        saved->iteration, saved->lockstep, saved->world_size, saved->key_count, saved->bytes);
  } else {
    fmt::print("saved {} at iteration {}: {} key(s), {}\n", Printable(save.job), saved->iteration,
               saved->key_count, HumanBytes(saved->bytes));
  }
  return kOk;
}

}  // namespace

void AddJobEvict(Subcommand job, const Options& options, Command& command) {
  const Subcommand evict =
      job.AddSubcommand("evict", "End a job; its workers receive an error with the reason");
  const auto eviction = std::make_shared<Eviction>();
  evict.AddOption("NAME", eviction->job, "Name of the job, or TENANT/NAME").Required().TypeName("");
  evict.AddOption("--reason", eviction->reason, "Reason for the workers' error message")
      .TypeName("TEXT");
  evict.AddFlag("--yes", eviction->yes, "Do not ask for confirmation");
  evict.SetFooter("Returns after the job's memory was freed.");
  evict.OnNamed([&, eviction] { command = [&, eviction] { return Evict(options, *eviction); }; });
}

void AddJobSave(Subcommand job, const Options& options, Command& command) {
  const Subcommand save =
      job.AddSubcommand("save", "Save a checkpoint of a running job while training continues");
  const auto request = std::make_shared<Save>();
  save.AddOption("NAME", request->job, "Name of the job, or TENANT/NAME").Required().TypeName("");
  save.AddOption("DIRECTORY", request->directory,
                 "Directory for the checkpoint; created, or its checkpoint is replaced")
      .Required()
      .TypeName("");
  save.AddOption("--patience", request->patience_text,
                 "Fail after this time without progress; must exceed one iteration")
      .TypeName("DURATION")
      .ShowDefault()
      .Check([](const std::string& text) {
        const auto patience = ParseDuration(text);
        if (patience && *patience > 0) return std::string();
        return fmt::format("\"{}\" is not a duration such as \"60s\"", text);
      });
  save.SetFooter(
      "The checkpoint has the parameters, masters, optimizer state and hyper-parameters of all "
      "keys\n"
      "after the same iteration, as safetensors files with a manifest.");
  save.OnNamed([&, request] { command = [&, request] { return SaveJob(options, *request); }; });
}

}  // namespace phub::client::cli
