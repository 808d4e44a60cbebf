// How parts of control that lie above the jobs' room learn what becomes of a job. Observers are
// registered with the JobTable before the first job and called in the order of registration, under
// control's lock.
#pragma once

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace phub::server {

class EventSink;
struct Job;

class JobObserver {
 public:
  virtual ~JobObserver() = default;
  // The job is about to enter the table; it has no shards yet.
  virtual void OnCreated(Job& /*job*/) {}
  // A rank attends: what it must know first is sent to it.
  virtual void OnAttaching(const Job& /*job*/, EventSink& /*sink*/) {}
  // The job failed. Its ranks know; its pending calls are not answered yet.
  virtual void OnFailed(Job& /*job*/) {}
  // The job left kRunning, by a fault or in order: `why` is for those who still wait.
  virtual void OnOver(Job& /*job*/, const absl::Status& /*why*/) {}
  // Every core loop has ended the job: its memory can be freed. The shards are gone.
  virtual void OnReleased(Job& /*job*/) {}
  // Another process took over the rank: calls of the one before end with `why`.
  virtual void OnTakenOver(Job& /*job*/, Rank /*rank*/, const absl::Status& /*why*/) {}
};

}  // namespace phub::server
