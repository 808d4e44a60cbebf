// Ends a run of a job, in order or by a fault: notifies its ranks, answers its pending calls and
// frees its memory. See job.h for the states of a job. Owned by Control; under control's lock.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/jobs/tenant_totals.h"

namespace phub::server {

class Ending {
 public:
  Ending(Context& context, JobTable& jobs, Sessions& sessions, HostMemory& host_memory,
         TenantShares& shares, TenantTotals& totals)
      : context_(context),
        jobs_(jobs),
        sessions_(sessions),
        host_memory_(host_memory),
        shares_(shares),
        totals_(totals) {}

  // Makes a fault with the names of the job filled in. `what` describes what happened.
  v1::Fault MakeFault(const Job& job, const char* code, const std::string& what) const;
  void BlameRank(const Job& job, Rank rank, v1::Fault& fault) const;

  // Notifies every rank and answers all pending calls. Ignored if the job has ended already: only
  // the first cause is reported.
  void Fail(Job& job, v1::Fault fault);
  // This rank and another one have different keys, or add and remove them in another order, so they
  // can never complete a round. `what` has both sides.
  void FailOverKeys(Job& job, Rank rank, const std::string& what);
  // Notifies the ranks of a job that has failed, unless that is done.
  void Announce(Job& job);
  // Rack 0 has recorded this fault of a job that has failed here: if the ranks are not notified
  // yet, it is theirs.
  void TakeFirstFault(Job& job, const v1::Fault& first);
  void EndInOrder(Job& job);

  // Ends the job at the core loops, which closes the lanes. Called some time after the ranks are
  // notified.
  void SendEndCommands(Job& job);
  // Frees the memory of the job. REQUIRES: every core loop has ended it. The record of the job is
  // kept for a while.
  void Release(Job& job);
  // Moves released jobs whose memory is free to JobTable::ended(), and forgets the oldest of those.
  void ReapReleased();

 private:
  void AnswerAllPending(Job& job, const absl::Status& status);
  void FreeMemory(Job& job);
  void CloseAccount(Job& job);

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  HostMemory& host_memory_;
  TenantShares& shares_;
  TenantTotals& totals_;
};

}  // namespace phub::server
