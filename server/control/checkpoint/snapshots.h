// A job's training state on its way out: memory for a copy, a target for every key, core loops that
// copy each chunk at its target while rounds go on, and a reader that takes the copy part by part.
// And what is known of states that are on disk. See checkpoints.h for who holds what until when.
// Owned by Control; under control's lock.
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
  Snapshots(Context& context, JobTable& jobs, PendingCalls& pending_calls, Versions& versions)
      : context_(context), jobs_(jobs), pending_calls_(pending_calls), versions_(versions) {}

  void BeginSnapshot(const v1::BeginSnapshotRequest& request, Answer<v1::Snapshot> answer);
  // Parts go to the sink, one at a time, until its End. On an error the sink is not used.
  absl::Status ReadSnapshot(const v1::ReadSnapshotRequest& request,
                            std::shared_ptr<SnapshotSink> sink);
  // The reader took its part, and may get the next one; or it is gone. Ignored if the sink is not
  // the snapshot's reader any more.
  void SnapshotPartSent(std::string_view snapshot_id, const SnapshotSink* sink);
  void CancelSnapshot(std::string_view snapshot_id, const SnapshotSink* sink);
  Job* FindSnapshot(std::string_view snapshot_id) const;  // null: not known

  // The reader says that it wrote the snapshot to disk.
  void ReportSavedState(const v1::ReportSavedStateRequest& request,
                        Answer<v1::ReportSavedStateResponse> answer);
  // The iteration of a snapshot that may be reported now.
  absl::StatusOr<std::uint64_t> IterationReadOut(const v1::ReportSavedStateRequest& request) const;

  // Before the core loops' events are taken: those of a snapshot that is acknowledged are all
  // among them.
  void NoteSnapshotAcknowledged(Job& job);
  void HandleSnapshotTaken(Job& job, CoreIndex core, const Event& event);
  void AdvanceSnapshot(Job& job, TimeNs now);

  void OnCreated(Job& job) override;
  void OnAttaching(const Job& job, EventSink& sink) override;
  void OnOver(Job& job, const absl::Status& why) override;
  void OnReleased(Job& job) override;

 private:
  Job* FindReadOut(const v1::ReportSavedStateRequest& request) const;  // null: not read lately
  absl::Status CheckTargets(const Job& job, const v1::BeginSnapshotRequest& request) const;
  absl::Status TakeSnapshot(Job& job, const v1::BeginSnapshotRequest& request);
  void SendSnapshotPart(Job& job);
  void DropSnapshot(Job& job, absl::Status why);
  void FreeSnapshot(Job& job);

  Context& context_;
  JobTable& jobs_;
  PendingCalls& pending_calls_;
  Versions& versions_;
};

}  // namespace phub::server
