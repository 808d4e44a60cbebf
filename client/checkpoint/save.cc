// Saves a checkpoint: chooses a boundary, begins a snapshot there at every daemon, and writes the
// data that they send.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "client/checkpoint/boundary.h"
#include "client/checkpoint/checkpoint.h"
#include "client/checkpoint/key_names.h"
#include "client/checkpoint/transfer.h"
#include "common/base/printable.h"
#include "common/base/version.h"
#include "common/checkpoint/writer.h"

namespace phub::client {
namespace {

constexpr std::uint32_t kAttemptsMax = 16;
constexpr auto kPause = std::chrono::milliseconds(20);

// 0, 1, 2, 4, ...: if a job had already passed the boundary, the next one is further ahead.
std::uint64_t MarginOf(std::uint32_t attempt) {
  return attempt == 1 ? 0 : std::uint64_t{1} << std::min(attempt - 2, 10u);
}

using Snapshots = std::vector<v1::Snapshot>;            // [daemon]
using Versions = std::vector<v1::GetVersionsResponse>;  // [daemon]
using Daemons = std::span<const CheckpointDaemon>;
using Reader = grpc::ClientReaderInterface<v1::SnapshotPart>;

// Sets the rack in a request if the job spans racks.
template <typename Request>
void ChooseRack(const CheckpointDaemon& daemon, Request& request) {
  if (daemon.rack) request.mutable_rack()->set_rack(*daemon.rack);
}

// If a job spans racks, the daemons of every rack hold a part of it. They are called through the
// given daemons: each has connections to its counterparts in the other racks.
std::vector<CheckpointDaemon> SpreadOverRacks(const std::vector<CheckpointDaemon>& daemons,
                                              const Versions& versions) {
  std::vector<CheckpointDaemon> spread;
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    const auto& racks = versions[i].racks();
    if (racks.empty() || daemons[i].rack) spread.push_back(daemons[i]);
    for (int rack = 0; rack < racks.size() && !daemons[i].rack; ++rack) {
      CheckpointDaemon& daemon = spread.emplace_back(daemons[i]);
      daemon.endpoint = Printable(racks[rack]);
      daemon.rack = static_cast<std::uint32_t>(rack);
    }
  }
  return spread;
}

absl::StatusOr<Versions> AskVersions(Daemons daemons, const SaveRequest& request,
                                     const TransferOptions& options) {
  v1::GetJobVersionsRequest question;
  question.set_tenant(request.tenant);
  question.set_job(request.job);
  Versions versions;
  for (const CheckpointDaemon& daemon : daemons) {
    ChooseRack(daemon, question);
    grpc::ClientContext context;
    Prepare(context, options);
    const grpc::Status status =
        daemon.admin->GetJobVersions(&context, question, &versions.emplace_back());
    if (!status.ok()) return FromGrpc(status, daemon.endpoint);
  }
  return versions;
}

std::vector<std::string> IdsOf(const Snapshots& snapshots) {
  std::vector<std::string> ids;
  for (const v1::Snapshot& snapshot : snapshots) ids.push_back(snapshot.snapshot_id());
  return ids;
}

// Releases the snapshots and waits until each daemon is free for another snapshot. Ignores errors:
// a snapshot may be gone already.
void GiveBack(Daemons daemons, const std::vector<std::string>& ids,
              const TransferOptions& options) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    v1::ReadSnapshotRequest request;
    ChooseRack(daemons[i], request);
    request.set_snapshot_id(ids[i]);
    request.set_give_back(true);
    grpc::ClientContext context;
    Prepare(context, options);
    const auto reader = daemons[i].admin->ReadSnapshot(&context, request);
    v1::SnapshotPart part;
    while (reader->Read(&part)) continue;
    reader->Finish();
  }
}

// Begins a snapshot at every daemon, or at none.
absl::StatusOr<Snapshots> Begin(Daemons daemons, const SaveRequest& request,
                                const Boundary& boundary, const TransferOptions& options) {
  v1::BeginSnapshotRequest question;
  question.set_tenant(request.tenant);
  question.set_job(request.job);
  question.set_incarnation(request.incarnation);
  for (std::size_t key = 0; key < boundary.targets.size(); ++key) {
    v1::SnapshotTarget& target = *question.add_targets();
    target.set_key_index(static_cast<std::uint32_t>(key));
    target.set_reductions(boundary.targets[key]);
  }
  Snapshots snapshots;
  for (const CheckpointDaemon& daemon : daemons) {
    grpc::ClientContext context;
    Prepare(context, options);
    ChooseRack(daemon, question);
    v1::Snapshot snapshot;
    const grpc::Status status = daemon.admin->BeginSnapshot(&context, question, &snapshot);
    if (!status.ok()) {
      GiveBack(daemons, IdsOf(snapshots), options);
      return FromGrpc(status, daemon.endpoint);
    }
    question.set_incarnation(snapshot.incarnation());  // the other daemons must have the same run
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

// Merges the daemons' descriptions of the keys at the boundary.
absl::StatusOr<checkpoint::CheckpointDescription> Describe(Daemons daemons,
                                                           const Snapshots& snapshots,
                                                           const Boundary& boundary) {
  checkpoint::CheckpointDescription description;
  description.job = snapshots.front().job();
  description.world_size = snapshots.front().world_size();
  description.iteration = boundary.iteration;
  description.phub_version = BuildVersion();
  description.saved_at_unix_s =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count());
  for (const CheckpointDaemon& daemon : daemons) description.daemons.push_back(daemon.endpoint);
  for (const v1::SnapshotKey& from : snapshots.front().keys()) {
    const auto index = static_cast<int>(description.keys.size());
    checkpoint::SavedKey key = DescribeKey(from.spec());
    key.optimizer_steps = from.reductions();
    key.iteration = from.spec().first_iteration() + from.reductions();
    std::uint64_t applied = UINT64_MAX;
    for (const v1::Snapshot& snapshot : snapshots) {
      if (snapshot.keys_size() != snapshots.front().keys_size() ||
          snapshot.keys(index).spec().name() != key.name ||
          snapshot.keys(index).reductions() != from.reductions()) {
        return absl::InternalError(fmt::format(
            "the daemons have different snapshots of key {} of job {}", key.name, description.job));
      }
      const v1::SnapshotKey& here = snapshot.keys(index);
      if (!here.has_hyper_parameters()) continue;  // this daemon has no chunk of the key
      applied = std::min(applied, here.applied());
      key.hyper_parameters = HyperParameterMap(here.hyper_parameters());
    }
    key.initialized = applied != UINT64_MAX && applied > 0;
    description.keys.push_back(std::move(key));
  }
  return description;
}

// The state of one save. Every daemon's thread first reads the description of the keys. The last
// thread opens the writer, then all write.
class Saving {
 public:
  Saving(Daemons daemons, const SaveRequest& request, const Boundary& boundary, Snapshots snapshots,
         Transfer& transfer)
      : daemons_(daemons),
        request_(request),
        boundary_(boundary),
        snapshots_(std::move(snapshots)),
        transfer_(transfer) {}

  absl::Status Read(std::size_t daemon) {
    v1::ReadSnapshotRequest question;
    ChooseRack(daemons_[daemon], question);
    question.set_snapshot_id(snapshots_[daemon].snapshot_id());
    const std::unique_ptr<Reader> reader =
        daemons_[daemon].admin->ReadSnapshot(&transfer_.context(daemon), question);
    v1::SnapshotPart part;
    if (!reader->Read(&part)) return Finish(*reader, daemon, "the snapshot is empty");
    *snapshots_[daemon].mutable_keys() = part.keys();
    transfer_.Moved(0);
    if (absl::Status status = OpenWriter(); !status.ok()) return status;
    while (reader->Read(&part)) {
      for (const v1::StatePiece& piece : part.pieces()) {
        if (absl::Status status = Write(piece, daemon); !status.ok()) return status;
      }
    }
    return Finish(*reader, daemon, "");
  }
  // A daemon's thread has failed: the other threads must not wait for it.
  void Leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    opened_.notify_all();
  }
  checkpoint::CheckpointWriter& writer() { return *writer_; }

 private:
  absl::Status Finish(Reader& reader, std::size_t daemon, const char* missing) {
    const absl::Status status = FromGrpc(reader.Finish(), daemons_[daemon].endpoint);
    if (!status.ok() || missing[0] == 0) return status;
    return absl::InternalError(fmt::format("daemon {}: {}", daemons_[daemon].endpoint, missing));
  }

  absl::Status OpenWriter() {
    std::unique_lock lock(mutex_);
    if (++ready_ < daemons_.size()) {
      opened_.wait(lock, [&] { return left_ || writer_ != nullptr || !failed_.ok(); });
      if (writer_ != nullptr || !failed_.ok()) return failed_;
      return absl::CancelledError("the transfer from another daemon failed");
    }
    auto description = Describe(daemons_, snapshots_, boundary_);
    failed_ = description.status();
    if (failed_.ok()) {
      auto writer =
          checkpoint::CheckpointWriter::Create(request_.directory, *std::move(description));
      failed_ = writer.status();
      if (writer.ok()) writer_ = *std::move(writer);
    }
    opened_.notify_all();
    return failed_;
  }

  absl::Status Write(const v1::StatePiece& piece, std::size_t daemon) {
    const auto& keys = writer_->description().keys;
    const std::string tensor =
        piece.key_index() < keys.size() ? TensorName(keys[piece.key_index()], piece.tensor()) : "";
    if (tensor.empty()) {
      return absl::InternalError(
          fmt::format("daemon {} sent a tensor that key number {} does not have",
                      daemons_[daemon].endpoint, piece.key_index()));
    }
    transfer_.Moved(piece.elements().size());
    if (!keys[piece.key_index()].initialized) return absl::OkStatus();
    return writer_->Write(tensor, piece.element_offset(),
                          std::as_bytes(std::span(piece.elements())));
  }

  const Daemons daemons_;
  const SaveRequest& request_;
  const Boundary& boundary_;
  Snapshots snapshots_;  // each is written by its daemon's thread before it counts in ready_
  Transfer& transfer_;

  std::mutex mutex_;  // protects the members below; writer_ does not change after it was set
  std::condition_variable opened_;
  std::size_t ready_ = 0;
  bool left_ = false;
  absl::Status failed_;
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
};

// Reports the checkpoint to every daemon, so that the workers know of it whichever daemon dies
// first. The checkpoint is already on disk, so failures do not matter for it.
absl::Status Report(Daemons daemons, const SaveRequest& request, std::uint64_t iteration,
                    const std::vector<std::string>& ids, const TransferOptions& options) {
  const v1::SavedState where = WhereSaved(iteration, request.directory);
  absl::Status told;
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    v1::ReportSavedStateRequest report;
    ChooseRack(daemons[i], report);
    report.set_tenant(request.tenant);
    report.set_job(request.job);
    report.set_snapshot_id(ids[i]);
    report.set_directory(where.directory());
    report.set_host(where.host());
    grpc::ClientContext context;
    Prepare(context, options);
    v1::ReportSavedStateResponse response;
    told.Update(FromGrpc(daemons[i].admin->ReportSavedState(&context, report, &response),
                         daemons[i].endpoint));
  }
  return told;
}

bool Tell(const TransferOptions& options, const TransferProgress& progress) {
  return !options.progress || options.progress(progress);
}

absl::StatusOr<SavedCheckpoint> Fetch(Daemons daemons, const SaveRequest& request,
                                      const Boundary& boundary, Snapshots snapshots,
                                      const TransferOptions& options) {
  SavedCheckpoint saved;
  saved.iteration = boundary.iteration;
  saved.lockstep = boundary.lockstep;
  saved.world_size = snapshots.front().world_size();
  saved.key_count = static_cast<std::uint32_t>(boundary.targets.size());
  for (const v1::Snapshot& snapshot : snapshots) saved.bytes += snapshot.bytes();
  const std::vector<std::string> ids = IdsOf(snapshots);
  Transfer transfer(daemons.size(), saved.bytes, options);
  Saving saving(daemons, request, boundary, std::move(snapshots), transfer);
  absl::Status status = transfer.Run([&](std::size_t daemon) {
    absl::Status read = saving.Read(daemon);
    if (!read.ok()) saving.Leave();
    return read;
  });
  if (!status.ok()) {
    GiveBack(daemons, ids, options);
    return status;
  }
  if (!Tell(options, {TransferProgress::Phase::kSyncing, 0, saved.bytes, saved.bytes})) {
    return absl::CancelledError("the save was cancelled");
  }
  if (status = saving.writer().Commit(); !status.ok()) return status;
  saved.told = Report(daemons, request, saved.iteration, ids, options);
  return saved;
}

}  // namespace

absl::StatusOr<SavedCheckpoint> SaveCheckpoint(std::span<const CheckpointDaemon> named,
                                               const SaveRequest& request,
                                               const TransferOptions& options) {
  if (named.empty()) return absl::InvalidArgumentError("no daemon was given to save from");
  std::vector<CheckpointDaemon> daemons(named.begin(), named.end());
  Versions before;
  for (std::uint32_t attempt = 1;; ++attempt) {
    if (!Tell(options, {TransferProgress::Phase::kChoosing, attempt, 0, 0})) {
      return absl::CancelledError("the save was cancelled");
    }
    absl::StatusOr<Versions> versions = AskVersions(daemons, request, options);
    if (!versions.ok()) return versions.status();
    if (daemons = SpreadOverRacks(daemons, *versions); daemons.size() > versions->size()) {
      versions = AskVersions(daemons, request, options);
      if (!versions.ok()) return versions.status();
    }
    const absl::StatusOr<Boundary> boundary = ChooseBoundary(*versions, before, MarginOf(attempt));
    absl::Status status = boundary.status();
    if (status.ok()) {
      absl::StatusOr<Snapshots> snapshots = Begin(daemons, request, *boundary, options);
      if (snapshots.ok()) {
        auto saved = Fetch(daemons, request, *boundary, *std::move(snapshots), options);
        if (saved.ok()) saved->attempts = attempt;
        return saved;
      }
      status = snapshots.status();
    }
    // Retry if the job had passed the boundary, keys are being added, or the snapshot of the last
    // attempt is still being released.
    const bool again = status.code() == absl::StatusCode::kAborted || absl::IsUnavailable(status);
    if (!again || attempt == kAttemptsMax) return status;
    before = *std::move(versions);
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace phub::client
