// Draining: the daemon accepts no new jobs. Running jobs can finish; those that still run at the
// deadline fail. Eviction: an administrator ends one job. Owned by Control; under control's lock.
#pragma once

#include "server/control/admin/admin.h"
#include "server/control/admin/job_descriptions.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/job_table.h"

namespace phub::server {

class Draining {
 public:
  Draining(Context& context, JobTable& jobs, Ending& ending, Admin& admin,
           JobDescriptions& descriptions)
      : context_(context),
        jobs_(jobs),
        ending_(ending),
        admin_(admin),
        descriptions_(descriptions) {}

  // The daemon is shutting down. From now on it accepts no new jobs, and it notifies all sessions.
  // Jobs that still run after `grace` fail. This cannot be undone.
  void Drain(DurationNs grace);
  // Whether the daemon refuses new jobs. Any thread, without the lock.
  bool draining() const { return context_.drain.draining; }
  // Whether the daemon is draining and no core loop has a job any more.
  bool Drained() const { return context_.drain.draining && jobs_.jobs().empty(); }
  // Sets how long jobs may run on when an administrator drains the daemon without a deadline.
  void SetDrainTimeout(DurationNs timeout) { context_.drain.timeout = timeout; }

  void DrainServer(const v1::DrainServerRequest& request, Answer<v1::ServerInfo> answer);
  void UndrainServer(const v1::UndrainServerRequest& request, Answer<v1::ServerInfo> answer);
  // Answers once the job's memory is freed.
  void EvictJob(const v1::EvictJobRequest& request, Answer<v1::JobInfo> answer);

  // Fails jobs that still run after the deadline.
  void CheckDeadline(Job& job, TimeNs now);

 private:
  void TellAll(const v1::SessionEvent& event);
  void SetDraining(DurationNs grace);
  v1::Fault MakeDrainFault(const Job& job) const;

  Context& context_;
  JobTable& jobs_;
  Ending& ending_;
  Admin& admin_;
  JobDescriptions& descriptions_;
};

}  // namespace phub::server
