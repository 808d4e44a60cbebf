// Snapshots of a job's training state. Control allocates memory for a copy and sets a target for
// every key. The core loops copy each chunk at its target while rounds go on. A reader then gets
// the copy part by part. Also keeps what is known of checkpoints on disk. See checkpoints.h for the
// lifetime of images. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/checkpoint/images.h"
#include "server/control/checkpoint/versions.h"
#include "server/control/jobs/pending_calls.h"

namespace phub::server {

class Snapshots final : public JobObserver {
 public:
  Snapshots(Context& context, JobTable& jobs, const HostMemory& host_memory,
            PendingCalls& pending_calls, Versions& versions)
      : context_(context),
        jobs_(jobs),
        host_memory_(host_memory),
        pending_calls_(pending_calls),
        versions_(versions) {}

  void BeginSnapshot(const v1::BeginSnapshotRequest& request, Answer<v1::Snapshot> answer);
  // Sends parts to the sink, one at a time, then End. On an error the sink is not used.
  absl::Status ReadSnapshot(const v1::ReadSnapshotRequest& request,
                            std::shared_ptr<SnapshotSink> sink);
  // SnapshotPartSent: the reader has received its part and can get the next one. CancelSnapshot:
  // the reader disconnected. Both are ignored if the sink is no longer the snapshot's reader.
  void SnapshotPartSent(std::string_view snapshot_id, const SnapshotSink* sink);
  void CancelSnapshot(std::string_view snapshot_id, const SnapshotSink* sink);
  Job* FindSnapshot(std::string_view snapshot_id) const;  // null: not known

  // The reader reports that it wrote the snapshot to disk.
  void ReportSavedState(const v1::ReportSavedStateRequest& request,
                        Answer<v1::ReportSavedStateResponse> answer);
  // The iteration of a snapshot that was read completely and can be reported now.
  absl::StatusOr<std::uint64_t> IterationReadOut(const v1::ReportSavedStateRequest& request) const;

  // To be called before the core loops' events are handled: if a snapshot is acknowledged now, all
  // its events are in the queues.
  void NoteSnapshotAcknowledged(Job& job);
  void HandleSnapshotTaken(Job& job, CoreIndex core, const Event& event);
  void AdvanceSnapshot(Job& job, TimeNs now);

  void OnCreated(Job& job) override;
  void OnAttaching(const Job& job, EventSink& sink) override;
  void OnOver(Job& job, const absl::Status& why) override;
  bool RefersToKeys(const Job& job) const override;
  void OnReleased(Job& job) override;

 private:
  // Null: not among the snapshots that were read recently.
  Job* FindReadOut(const v1::ReportSavedStateRequest& request) const;
  // Sets `targets` [key] if it succeeds.
  absl::Status CheckTargets(const Job& job, const v1::BeginSnapshotRequest& request,
                            std::vector<std::uint64_t>& targets) const;
  void MapSnapshot(Job& job, const v1::BeginSnapshotRequest& request,
                   std::vector<std::uint64_t> targets, Answer<v1::Snapshot> answer);
  void EnterSnapshot(Job& job, const absl::Status& covered);
  void NoteBegun(Job& job, std::vector<std::unique_ptr<VersionReport>> given);
  void NoteCopied(Job& job);
  void DropSnapshotOf(Job& job, const std::string& saver);
  void StartSnapshot(Job& job);
  void FillKeys(SnapshotRun& run, v1::SnapshotPart& part) const;
  std::uint64_t FillPieces(const Job& job, SnapshotRun& run, v1::SnapshotPart& part) const;
  void SendSnapshotPart(Job& job);
  void DropSnapshot(Job& job, absl::Status why);
  void FreeSnapshot(Job& job);
  void EndSnapshot(Job& job);

  Context& context_;
  JobTable& jobs_;
  const HostMemory& host_memory_;
  PendingCalls& pending_calls_;
  Versions& versions_;
};

}  // namespace phub::server
