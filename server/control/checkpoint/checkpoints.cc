// What is known of a job's checkpoints on disk. Clients that save or load report the directory, and
// control forwards it to the job's ranks: the error that ends a job then names the checkpoint from
// which to continue. The daemon does not store it, since every rank knows it.
#include "server/control/checkpoint/checkpoints.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/snapshots.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/on_control.h"

namespace phub::server {
namespace {

// Clients that write to disk at the same time. Beyond this limit, some client probably never
// reports.
constexpr std::size_t kReadOutsMax = 4;
constexpr std::size_t kDirectoryBytesMax = 1024;
constexpr std::size_t kHostBytesMax = 255;

auto FindIn(Job& job, std::string_view snapshot_id) {
  return std::find_if(job.checkpoints->read_outs.begin(), job.checkpoints->read_outs.end(),
                      [&](const ReadOut& read) { return read.id == snapshot_id; });
}

}  // namespace

v1::SnapshotKey DescribeAtTarget(const SnapshotContents& contents, std::uint32_t index) {
  const KeyAtTarget& key = contents.keys[index];
  v1::SnapshotKey described;
  *described.mutable_spec() = contents.job_keys[index];
  described.mutable_spec()->set_first_iteration(key.first_iteration);
  described.set_key_index(index);
  described.set_reductions(key.reductions);
  described.set_applied(key.applied);
  if (key.is_here) *described.mutable_hyper_parameters() = ToProto(key.hyper_parameters);
  return described;
}

void NoteReadOut(Job& job) {
  const SnapshotRun& run = *job.checkpoints->snapshot;
  job.checkpoints->read_outs.push_back(
      {.id = run.id, .iteration = run.contents->iteration, .begun_at = run.begun_at});
  if (job.checkpoints->read_outs.size() > kReadOutsMax) job.checkpoints->read_outs.pop_front();
}

std::optional<v1::SavedState> DescribeNewestSave(const Job& job, TimeNs now) {
  if (job.checkpoints->newest_save.at == 0) return std::nullopt;
  v1::SavedState state = job.checkpoints->newest_save.state;
  state.set_age_ns(now - job.checkpoints->newest_save.at);
  return state;
}

v1::SavedState SaveAt(std::uint64_t iteration, const std::string& directory,
                      const std::string& host) {
  v1::SavedState state;
  state.set_iteration(iteration);
  state.set_directory(Printable(directory, kDirectoryBytesMax));
  state.set_host(Printable(host, kHostBytesMax));
  return state;
}

void NoteSave(Context& context, Job& job, const v1::SavedState& state, TimeNs at, TimeNs now) {
  if (at <= job.checkpoints->newest_save.at || state.directory().empty()) return;
  job.checkpoints->newest_save = {state, at};
  context.log.Info(
      "event=state_saved tenant={} job=\"{}\" iteration={} directory=\"{}\" host=\"{}\" loaded={}",
      job.account.tenant, job.name(), state.iteration(), state.directory(), state.host(),
      state.loaded());
  if (!job.running()) return;
  v1::SessionEvent event;
  *event.mutable_saved() = *DescribeNewestSave(job, now);
  for (Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
}

Job* Snapshots::FindReadOut(const v1::ReportSavedStateRequest& request) const {
  const std::string owner = request.tenant().empty() ? kDefaultTenant : request.tenant();
  const auto look = [&](const auto& all) -> Job* {
    for (const auto& job : all) {
      if (job->account.tenant != owner || job->name() != request.job()) continue;
      if (FindIn(*job, request.snapshot_id()) != job->checkpoints->read_outs.end())
        return job.get();
    }
    return nullptr;
  };
  Job* const job = look(jobs_.jobs());
  return job != nullptr ? job : look(jobs_.ended());
}

absl::StatusOr<std::uint64_t> Snapshots::IterationReadOut(
    const v1::ReportSavedStateRequest& request) const {
  PHUB_ON_CONTROL();
  if (request.directory().empty()) {
    return absl::InvalidArgumentError("the report of a saved checkpoint must name its directory");
  }
  Job* const job = FindReadOut(request);
  if (job == nullptr) {
    return absl::NotFoundError(
        fmt::format("job {} has no such snapshot to report: it was not read completely, was "
                    "already reported, or newer snapshots have replaced it",
                    Printable(request.job(), kHostBytesMax)));
  }
  absl::Status status = CheckSpansRacks(*job, request.has_rack());
  if (!status.ok()) return status;
  return FindIn(*job, request.snapshot_id())->iteration;
}

void Snapshots::ReportSavedState(const v1::ReportSavedStateRequest& request,
                                 Answer<v1::ReportSavedStateResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<std::uint64_t> iteration = IterationReadOut(request);
  if (!iteration.ok()) {
    return answer(context_.Refuse(ControlCounter::snapshots_refused, iteration.status()), {});
  }
  Job& job = *FindReadOut(request);
  const auto read = FindIn(job, request.snapshot_id());
  NoteSave(context_, job, SaveAt(*iteration, request.directory(), request.host()), read->begun_at,
           context_.clock.Now());
  job.checkpoints->read_outs.erase(read);
  answer(absl::OkStatus(), {});
}

}  // namespace phub::server
