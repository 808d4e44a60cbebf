// Draining: no new jobs, and running ones end by themselves or, after a deadline, with a fault.
// Evicting: one job ends because the administrator says so. Owned by Control; under control's lock.
#pragma once

#include "server/control/admin/admin.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/job_table.h"

namespace phub::server {

class Draining {
 public:
  Draining(Context& context, JobTable& jobs, Ending& ending, Admin& admin)
      : context_(context), jobs_(jobs), ending_(ending), admin_(admin) {}

  // The daemon stops: no new jobs from now on; sessions are told. Jobs that still run after `grace`
  // fail. It cannot be undone.
  void Drain(DurationNs grace);
  // Draining, and no job is left, in any core loop.
  bool Drained() const { return context_.drain.draining && jobs_.jobs().empty(); }
  // How long an administrator's drain lets jobs run on, when the call does not say, from now on.
  void SetDrainTimeout(DurationNs timeout) { context_.drain.timeout = timeout; }

  void DrainServer(const v1::DrainServerRequest& request, Answer<v1::ServerInfo> answer);
  void UndrainServer(const v1::UndrainServerRequest& request, Answer<v1::ServerInfo> answer);
  // Answers once the job's memory was given back.
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
};

}  // namespace phub::server
