// Saves a checkpoint: chooses a boundary, begins a snapshot there at every daemon, and writes the
// data that they send.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "client/checkpoint/boundary.h"
#include "client/checkpoint/checkpoint.h"
#include "client/checkpoint/key_names.h"
#include "client/checkpoint/outage_wait.h"
#include "client/checkpoint/snapshot_calls.h"
#include "client/checkpoint/transfer.h"
#include "common/base/random.h"
#include "common/base/version.h"
#include "common/checkpoint/writer.h"

namespace phub::client {
namespace {

constexpr std::uint32_t kAttemptsMax = 16;
constexpr auto kPause = std::chrono::milliseconds(20);
constexpr std::size_t kSaverBytes = 16;

using Reader = grpc::ClientReaderInterface<v1::SnapshotPart>;
using Places = std::vector<std::optional<std::size_t>>;

// 0, 1, 2, 4, ...: if a job had already passed the boundary, the next one is further ahead.
std::uint64_t MarginOf(std::uint32_t attempt) {
  return attempt == 1 ? 0 : std::uint64_t{1} << std::min(attempt - 2, 10u);
}

// Merges the daemons' descriptions of the keys at the boundary. Collective keys are left out.
// places: [key] its position in the description, for keys that are in it.
absl::StatusOr<checkpoint::CheckpointDescription> Describe(Daemons daemons,
                                                           const Snapshots& snapshots,
                                                           const Boundary& boundary,
                                                           Places& places) {
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
  for (int index = 0; index < snapshots.front().keys_size(); ++index) {
    const v1::SnapshotKey& from = snapshots.front().keys(index);
    places.emplace_back();
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
    if (from.spec().collective()) continue;
    places.back() = description.keys.size();
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
    question.set_keys_in_parts(true);
    const std::unique_ptr<Reader> reader =
        daemons_[daemon].admin->ReadSnapshot(&transfer_.context(daemon), question);
    v1::SnapshotPart part;
    snapshots_[daemon].clear_keys();  // an older daemon's, as they were before their targets
    do {
      if (!reader->Read(&part)) return Finish(*reader, daemon, "the snapshot is incomplete");
      snapshots_[daemon].mutable_keys()->MergeFrom(part.keys());
      transfer_.Moved(0);
    } while (part.more_keys());
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
    auto description = Describe(daemons_, snapshots_, boundary_, places_);
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
    const std::optional<std::size_t> place =
        piece.key_index() < places_.size() ? places_[piece.key_index()] : std::nullopt;
    const std::string tensor = place ? TensorName(keys[*place], piece.tensor()) : "";
    if (tensor.empty()) {
      return absl::InternalError(
          fmt::format("daemon {} sent a tensor that key number {} does not have",
                      daemons_[daemon].endpoint, piece.key_index()));
    }
    transfer_.Moved(piece.elements().size());
    if (!keys[*place].initialized) return absl::OkStatus();
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
  Places places_;  // does not change after writer_ was set
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
};

bool Tell(const TransferOptions& options, const TransferProgress& progress) {
  return !options.progress || options.progress(progress);
}

// `idle`: set if the transfer failed because nothing was transferred for idle_timeout.
absl::StatusOr<SavedCheckpoint> Fetch(Daemons daemons, const SaveRequest& request,
                                      const Boundary& boundary, Snapshots snapshots,
                                      const TransferOptions& options, bool& idle) {
  SavedCheckpoint saved;
  saved.iteration = boundary.iteration;
  saved.lockstep = boundary.lockstep;
  saved.world_size = snapshots.front().world_size();
  for (const v1::Snapshot& snapshot : snapshots) saved.bytes += snapshot.bytes();
  const std::vector<std::string> ids = IdsOf(snapshots);
  Transfer transfer(daemons.size(), saved.bytes, options);
  Saving saving(daemons, request, boundary, std::move(snapshots), transfer);
  absl::Status status = transfer.Run([&](std::size_t daemon) {
    absl::Status read = saving.Read(daemon);
    if (!read.ok()) saving.Leave();
    return read;
  });
  idle = transfer.idle();
  if (!status.ok()) {
    GiveBack(daemons, ids, options);
    return status;
  }
  if (!Tell(options, {TransferProgress::Phase::kSyncing, 0, saved.bytes, saved.bytes})) {
    return absl::CancelledError("the save was cancelled");
  }
  saved.key_count = static_cast<std::uint32_t>(saving.writer().description().keys.size());
  if (status = saving.writer().Commit(); !status.ok()) return status;
  if (options.lasts) saved.told = ReportSave(daemons, request, saved.iteration, ids, options);
  return saved;
}

std::string NewSaver() {
  std::string saver(kSaverBytes, 0);
  SystemRandom().Fill(std::as_writable_bytes(std::span(saver)));
  return saver;
}

// The attempts of one save, until one succeeds.
class Attempts {
 public:
  Attempts(std::span<const CheckpointDaemon> daemons, const SaveRequest& request,
           const TransferOptions& options)
      : daemons_(daemons.begin(), daemons.end()), request_(request), options_(options) {}

  absl::StatusOr<SavedCheckpoint> Run() {
    for (;;) {
      if (!Tell(options_, {TransferProgress::Phase::kChoosing, attempt_, 0, 0})) {
        return absl::CancelledError("the save was cancelled");
      }
      again_ = false;
      absl::StatusOr<SavedCheckpoint> saved = Try();
      if (saved.ok()) return saved;
      absl::Status failure = saved.status();
      if (outage_.Pause(failure, {TransferProgress::Phase::kChoosing, attempt_, 0, 0})) {
        idle_ = absl::OkStatus();
        continue;
      }
      if (!again_ || attempt_ == kAttemptsMax) return failure;
      ++attempt_;
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  // again_: set if another attempt can help.
  absl::StatusOr<SavedCheckpoint> Try() {
    absl::StatusOr<Versions> versions = AskVersions(daemons_, request_, options_);
    if (!versions.ok()) return versions.status();
    if (daemons_ = SpreadOverRacks(daemons_, *versions); daemons_.size() > versions->size()) {
      versions = AskVersions(daemons_, request_, options_);
      if (!versions.ok()) return versions.status();
    }
    if (!idle_.ok()) return idle_;  // the daemons answer, so it was no outage
    const absl::StatusOr<Boundary> boundary =
        ChooseBoundary(*versions, before_, MarginOf(attempt_));
    before_ = *std::move(versions);
    if (!boundary.ok()) return Failed(boundary.status());
    absl::StatusOr<Snapshots> snapshots =
        BeginSnapshots(daemons_, request_, saver_, *boundary, options_);
    if (!snapshots.ok()) return Failed(snapshots.status());
    outage_.Over();
    bool idle = false;
    auto saved = Fetch(daemons_, request_, *boundary, *std::move(snapshots), options_, idle);
    if (saved.ok()) saved->attempts = attempt_;
    if (idle) idle_ = saved.status();
    // The daemon drops a snapshot that nobody reads, for example because of an outage.
    again_ = idle || absl::IsNotFound(saved.status()) || absl::IsDeadlineExceeded(saved.status());
    return saved;
  }

  // Another attempt helps if the job had passed the boundary, keys are being added, or the snapshot
  // of the last attempt is still being released.
  absl::Status Failed(const absl::Status& status) {
    again_ = absl::IsAborted(status) || absl::IsUnavailable(status);
    return status;
  }

  std::vector<CheckpointDaemon> daemons_;
  const SaveRequest& request_;
  const TransferOptions& options_;
  const std::string saver_ = NewSaver();
  OutageWait outage_{options_};
  Versions before_;
  std::uint32_t attempt_ = 1;
  bool again_ = false;
  absl::Status idle_;  // the last attempt transferred nothing for idle_timeout
};

}  // namespace

absl::StatusOr<SavedCheckpoint> SaveCheckpoint(std::span<const CheckpointDaemon> daemons,
                                               const SaveRequest& request,
                                               const TransferOptions& options) {
  if (daemons.empty()) return absl::InvalidArgumentError("no daemon was given to save from");
  return Attempts(daemons, request, options).Run();
}

}  // namespace phub::client
