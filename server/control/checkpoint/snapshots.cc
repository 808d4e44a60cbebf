// Takes snapshots: memory for a copy, a target for every key, and core loops that copy each chunk
// at its target while rounds go on. See checkpoints.h for the lifetime of images.
#include "server/control/checkpoint/snapshots.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/snapshot_contents.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kSnapshotIdBytes = 16;

}  // namespace

absl::Status Snapshots::CheckTargets(const Job& job, const v1::BeginSnapshotRequest& request,
                                     std::vector<std::uint64_t>& targets) const {
  if (request.incarnation() != 0 && request.incarnation() != job.account.incarnation.value) {
    return absl::FailedPreconditionError(
        fmt::format("job {} was started again: its incarnation is now {}, not {}", job.name(),
                    FormatIncarnation(job.account.incarnation),
                    FormatIncarnation(Incarnation{request.incarnation()})));
  }
  const SnapshotRun* const earlier = job.checkpoints->snapshot.get();
  if (earlier == nullptr ? job.checkpoints->snapshot_maps : earlier->over()) {
    return absl::UnavailableError(fmt::format(
        "the previous snapshot of job {} is still being released; retry in a moment", job.name()));
  }
  if (job.checkpoints->snapshot != nullptr) {
    return absl::FailedPreconditionError(fmt::format(
        "a snapshot of job {} is already in progress, started {} ago; retry when it is over",
        job.name(), FormatAge(context_.clock.Now() - job.checkpoints->snapshot->begun_at)));
  }
  if (job.keys.empty()) {
    return absl::FailedPreconditionError(fmt::format("job {} has no keys yet", job.name()));
  }
  if (job.keys.saved_count() == 0) {
    return absl::FailedPreconditionError(fmt::format(
        "job {} has only collective keys, which checkpoints do not contain", job.name()));
  }
  if (absl::Status status = CheckNoGroups(job); !status.ok()) return status;
  const auto target_count = static_cast<std::size_t>(request.targets_size());
  std::vector<bool> has_target(job.keys.size(), false);
  targets.assign(job.keys.size(), 0);
  for (const v1::SnapshotTarget& target : request.targets()) {
    if (target.key_index() >= job.keys.size() || has_target[target.key_index()]) {
      return absl::InvalidArgumentError(fmt::format(
          "job {}: the snapshot target for key number {} {}", job.name(), target.key_index(),
          target.key_index() < job.keys.size() ? "is given twice"
                                               : "names a key that the job does not have"));
    }
    has_target[target.key_index()] = true;
    targets[target.key_index()] = target.reductions();
  }
  if (target_count < job.keys.size() || !pending_calls_.KeysAcknowledged(job, job.batches.size())) {
    return absl::AbortedError(fmt::format(
        "job {} has {} keys (the last ones may not be added completely, or be removed), and "
        "the request has targets for {}; query its versions again and retry",
        job.name(), job.keys.size(), target_count));
  }
  return absl::OkStatus();
}

// Another thread maps the images, which takes long if there are many keys.
void Snapshots::MapSnapshot(Job& job, const v1::BeginSnapshotRequest& request,
                            std::vector<std::uint64_t> targets, Answer<v1::Snapshot> answer) {
  auto run = std::make_unique<SnapshotRun>();
  std::array<std::byte, kSnapshotIdBytes> id;
  context_.random.Fill(id);
  run->id.assign(reinterpret_cast<const char*>(id.data()), id.size());
  run->saver = request.saver();
  run->begun_at = context_.clock.Now();
  run->deadline = kNever;
  run->taken.assign(context_.cores.size(), false);
  run->begins_with_keys = !request.without_keys();
  run->begun = std::move(answer);
  v1::Snapshot& description = run->description;
  description.set_snapshot_id(run->id);
  description.set_job(job.name());
  description.set_world_size(std::max(job.config.world_size, job.config.ranks_of_job));
  description.set_incarnation(job.account.incarnation.value);
  const std::shared_ptr<SnapshotContents> contents = run->contents;
  contents->source = SourceOf(job);
  contents->targets = std::move(targets);
  contents->job_keys = job.keys;
  const std::string run_id = run->id;
  job.checkpoints->snapshot = std::move(run);
  job.checkpoints->snapshot_maps = true;
  RunLongOn(
      context_, job, [contents] { MapContents(*contents); },
      [this, &job, run_id, contents] {
        CoverImages(context_, job, contents->images,
                    [this, &job, run_id, contents](const absl::Status& covered) {
                      job.checkpoints->snapshot_maps = false;
                      SnapshotRun* const now = job.checkpoints->snapshot.get();
                      if (job.running() && now != nullptr && now->id == run_id)
                        return EnterSnapshot(job, covered);
                      (void)host_memory_.FreeLater(contents);
                    });
      });
}

// The images are mapped: charges them, and gets their pages.
void Snapshots::EnterSnapshot(Job& job, const absl::Status& covered) {
  SnapshotRun& run = *job.checkpoints->snapshot;
  if (!covered.ok()) {
    (void)host_memory_.FreeLater(run.contents);
    return DropSnapshot(job, context_.Refuse(ControlCounter::snapshots_refused, covered));
  }
  auto images = AdmitImages(context_, host_memory_, job, std::exchange(run.contents->images, {}));
  if (!images.ok()) {
    return DropSnapshot(job, context_.Refuse(ControlCounter::snapshots_refused, images.status()));
  }
  run.images = *std::move(images);
  run.mapped = true;
  run.description.set_bytes(run.contents->bytes);
  context_.counters.Add(ControlCounter::snapshots_begun);
  context_.log.Info("event=snapshot_begun tenant={} job=\"{}\" keys={} bytes={}",
                    job.account.tenant, job.name(), run.contents->keys.size(), run.contents->bytes);
  StartSnapshot(job);
}

// Gives the snapshot to the core loops once its images have pages.
void Snapshots::StartSnapshot(Job& job) {
  SnapshotRun& run = *job.checkpoints->snapshot;
  if (!run.mapped) return;
  const PrefaultState pages = run.images.state();
  if (pages == PrefaultState::kWaiting) return;
  if (pages == PrefaultState::kRefused) {
    return DropSnapshot(job, context_.Refuse(ControlCounter::snapshots_refused,
                                             ImagesRefused(job, run.images.bytes)));
  }
  run.state = SnapshotRun::State::kAccepting;
  run.acknowledged = false;
  run.deadline = context_.clock.Now() + context_.options.report_timeout;
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    run.tickets.push_back(context_.cores[core].Send({.kind = Command::Kind::kTakeSnapshot,
                                                     .shard = job.shards[core].get(),
                                                     .image = run.images.of_cores[core].get()}));
  }
  // The core loops execute this query after the snapshot's command. From then on, the difference
  // between a key's applied rounds and its reductions does not change.
  versions_.AskForVersions(
      job, context_.options.report_timeout,
      [this, &job, id = run.id](const absl::Status& asked, VersionQuery& query) {
        if (job.checkpoints->snapshot == nullptr || job.checkpoints->snapshot->id != id) return;
        if (!asked.ok()) return DropSnapshot(job, asked);
        NoteBegun(job, TakeReports(query));
      });
}

void Snapshots::NoteBegun(Job& job, std::vector<std::unique_ptr<VersionReport>> given) {
  const auto reports = std::make_shared<VersionReports>(std::move(given));
  SnapshotRun& run = *job.checkpoints->snapshot;
  run.deadline = kNever;  // the core loops have accepted it
  RunLongOn(
      context_, job,
      [contents = run.contents, reports, with_keys = run.begins_with_keys] {
        DescribeBegun(*contents, *reports);
        if (with_keys) DescribeKeys(*contents);
      },
      [this, &job, id = run.id] {
        SnapshotRun* const now = job.checkpoints->snapshot.get();
        if (!job.running() || now == nullptr || now->id != id) return;
        now->versions_known = true;
        AdvanceSnapshot(job, context_.clock.Now());
      });
}

// Every chunk is copied: the reader gets what was copied once that is described.
void Snapshots::NoteCopied(Job& job) {
  SnapshotRun& run = *job.checkpoints->snapshot;
  run.describing = true;
  RunLongOn(
      context_, job,
      [contents = run.contents, images = run.images.of_cores, in_parts = run.keys_in_parts] {
        DescribeCopied(*contents, images);
        if (!in_parts) DescribeKeys(*contents);
      },
      [this, &job, id = run.id] {
        SnapshotRun* const now = job.checkpoints->snapshot.get();
        if (!job.running() || now == nullptr || now->id != id || now->over()) return;
        now->copied = true;
        if (now->reader_waits) SendSnapshotPart(job);
      });
}

// The saver has lost its connection and begins again, so nobody will read the snapshot that it
// began before.
void Snapshots::DropSnapshotOf(Job& job, const std::string& saver) {
  const SnapshotRun* const run = job.checkpoints->snapshot.get();
  if (run == nullptr || saver.empty() || run->saver != saver) return;
  DropSnapshot(job, absl::CancelledError("its saver has begun another snapshot"));
}

void Snapshots::BeginSnapshot(const v1::BeginSnapshotRequest& request,
                              Answer<v1::Snapshot> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Job*> found = jobs_.FindJobToWorkOn(request.tenant(), request.job());
  absl::Status status = found.status();
  if (status.ok()) status = CheckSpansRacks(**found, request.has_rack());
  if (status.ok()) DropSnapshotOf(**found, request.saver());
  std::vector<std::uint64_t> targets;
  if (status.ok()) status = CheckTargets(**found, request, targets);
  if (status.ok()) status = versions_.CheckQueryRoom(**found);
  if (!status.ok()) return answer(context_.Refuse(ControlCounter::snapshots_refused, status), {});
  MapSnapshot(**found, request, std::move(targets), std::move(answer));
}

// Called before the core loops' events are handled. Everything that a core loop reported before it
// acknowledged is already in the queues, so no older event can follow once they are handled.
void Snapshots::NoteSnapshotAcknowledged(Job& job) {
  PHUB_ON_CONTROL();
  if (job.checkpoints->snapshot != nullptr)
    job.checkpoints->snapshot->acknowledged =
        context_.cores.Acknowledged(job.checkpoints->snapshot->tickets);
}

void Snapshots::HandleSnapshotTaken(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  SnapshotRun* const run = job.checkpoints->snapshot.get();
  PHUB_CHECK(run != nullptr && run->images.of_cores[core.value].get() == event.image,
             "job={} core={}", job.name(), core.value);
  if (event.image->missed) {
    run->missed = true;
  } else {
    run->taken[core.value] = true;
  }
}

void Snapshots::AdvanceSnapshot(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (!job.running()) return;  // everything is freed with the job
  ReapImages(context_, job);
  SnapshotRun* const run = job.checkpoints->snapshot.get();
  if (run == nullptr) return;
  if (run->state == SnapshotRun::State::kMapping) return StartSnapshot(job);
  if (run->state == SnapshotRun::State::kFreeing) return;
  if (run->state == SnapshotRun::State::kDropping) {
    if (run->acknowledged) FreeSnapshot(job);
    return;
  }
  if (run->missed) {
    context_.counters.Add(ControlCounter::snapshots_missed);
    return DropSnapshot(
        job, absl::AbortedError(fmt::format(
                 "job {} has already passed the snapshot's target; request a later boundary",
                 job.name())));
  }
  if (run->state == SnapshotRun::State::kAccepting && run->acknowledged && run->versions_known) {
    run->state = SnapshotRun::State::kTaking;
    run->deadline = now + context_.options.transfer_timeout;
    run->description.mutable_keys()->Swap(&run->contents->described);
    std::exchange(run->begun, nullptr)(absl::OkStatus(), std::move(run->description));
  }
  if (now >= run->deadline) {
    const bool accepting = run->state == SnapshotRun::State::kAccepting;
    if (!accepting) context_.counters.Add(ControlCounter::snapshots_abandoned);
    return DropSnapshot(
        job, absl::DeadlineExceededError(fmt::format(
                 "the snapshot of job {} was dropped: {} within {}", job.name(),
                 accepting ? "the core loops did not accept it" : "no client read from it",
                 FormatAge(accepting ? context_.options.report_timeout
                                     : context_.options.transfer_timeout))));
  }
  const auto is_taken = [](bool taken) { return taken; };
  if (run->copied || run->describing || !run->reader_waits ||
      !std::all_of(run->taken.begin(), run->taken.end(), is_taken)) {
    // The reader has its own timeout.
    if (run->reader != nullptr && !run->copied) run->deadline = kNever;
    return;
  }
  run->deadline = kNever;
  NoteCopied(job);
}

// Gives up the snapshot. `why` is the answer to clients that wait for it.
void Snapshots::DropSnapshot(Job& job, absl::Status why) {
  SnapshotRun& run = *job.checkpoints->snapshot;
  if (run.over()) return;
  const bool is_known = run.state != SnapshotRun::State::kMapping;
  run.state = SnapshotRun::State::kDropping;
  run.acknowledged = false;
  run.deadline = kNever;
  run.end = std::move(why);
  if (!is_known) return FreeSnapshot(job);
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    run.tickets[core] = context_.cores[core].Send(
        {.kind = Command::Kind::kDropSnapshot, .shard = job.shards[core].get()});
  }
}

// No core loop uses the images. Frees the memory before it answers, so that a client which gets the
// answer can request another snapshot.
void Snapshots::FreeSnapshot(Job& job) {
  SnapshotRun& run = *job.checkpoints->snapshot;
  run.state = SnapshotRun::State::kFreeing;
  FreeImages(context_, host_memory_, job, std::move(run.images),
             [this, &job] { EndSnapshot(job); });
}

void Snapshots::EndSnapshot(Job& job) {
  const std::unique_ptr<SnapshotRun> run = std::move(job.checkpoints->snapshot);
  context_.log.Info("event=snapshot_over tenant={} job=\"{}\" taken_ns={} status=\"{}\"",
                    job.account.tenant, job.name(), context_.clock.Now() - run->begun_at,
                    std::string(run->end.message()));
  if (run->begun) run->begun(run->end, {});
  if (run->reader) run->reader->End(run->end);
  (void)host_memory_.FreeLater(std::move(run->contents));
}

void Snapshots::OnCreated(Job& job) { job.checkpoints = std::make_shared<JobCheckpoints>(); }

// Gives a new rank the newest checkpoint on disk, which its later errors name.
void Snapshots::OnAttaching(const Job& job, EventSink& sink) {
  PHUB_ON_CONTROL();
  const std::optional<v1::SavedState> saved = DescribeNewestSave(job, context_.clock.Now());
  if (!saved) return;
  v1::SessionEvent event;
  *event.mutable_saved() = *saved;
  sink.Send(event);
}

// Only until every core loop has accepted the snapshot, which does not depend on ranks: a snapshot
// that is being taken waits for rounds of ranks that may wait in RemoveKeys. It has no chunks of
// the keys that can be removed.
bool Snapshots::RefersToKeys(const Job& job) const {
  if (job.checkpoints->snapshot_maps) return true;
  const SnapshotRun* const run = job.checkpoints->snapshot.get();
  return run != nullptr && (run->state == SnapshotRun::State::kMapping ||
                            run->state == SnapshotRun::State::kAccepting);
}

void Snapshots::OnOver(Job& job, const absl::Status& why) {
  PHUB_ON_CONTROL();
  SnapshotRun* const run = job.checkpoints->snapshot.get();
  if (run == nullptr) return;
  const absl::Status end = run->over() ? run->end : why;
  if (run->begun) std::exchange(run->begun, nullptr)(end, {});
  if (run->reader) std::exchange(run->reader, nullptr)->End(end);
}

// The ledger gets the memory back when it closes the job's account.
void Snapshots::OnReleased(Job& job) {
  PHUB_ON_CONTROL();
  JobCheckpoints& checkpoints = *job.checkpoints;
  const auto give_up = [&](Images& images) {
    std::ranges::move(images.of_cores, std::back_inserter(job.unwanted));
  };
  if (checkpoints.snapshot) {
    give_up(checkpoints.snapshot->images);
    job.unwanted.push_back(checkpoints.snapshot->contents);
  }
  if (checkpoints.loaded) {
    give_up(checkpoints.loaded->images);
    job.unwanted.push_back(checkpoints.loaded->description);
  }
  for (const auto& state : checkpoints.replaced) give_up(state->images);
  checkpoints.version_queries.clear();
  checkpoints.snapshot.reset();
  checkpoints.arrival.reset();
  checkpoints.loaded.reset();
  checkpoints.replaced.clear();
  checkpoints.freeing.clear();
}

}  // namespace phub::server
