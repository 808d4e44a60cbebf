// Notifies rooms of control above jobs/ when a job changes its state. Observers are registered with
// the JobTable before the first job and called in the order of registration, under control's lock.
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
  // A rank opened its Attend stream: send the events that it needs first.
  virtual void OnAttaching(const Job& /*job*/, EventSink& /*sink*/) {}
  // The job failed. Its ranks are not notified yet; set job.announce_at if they must wait.
  virtual void OnFailed(Job& /*job*/) {}
  // The job left kRunning, by a fault or in order. Answer pending calls with `why`.
  virtual void OnOver(Job& /*job*/, const absl::Status& /*why*/) {}
  // Every core loop has ended the job and its shards are freed. Free the memory that belongs to it.
  virtual void OnReleased(Job& /*job*/) {}
  // Work in progress refers to keys or chunks by their numbers, so none may be removed now.
  virtual bool RefersToKeys(const Job& /*job*/) const { return false; }
  // The job's last keys were removed, and later keys may have their numbers.
  virtual void OnKeysRemoved(Job& /*job*/) {}
  // Another process took over the rank. End the calls of the old process with `why`.
  virtual void OnTakenOver(Job& /*job*/, Rank /*rank*/, const absl::Status& /*why*/) {}
};

}  // namespace phub::server
