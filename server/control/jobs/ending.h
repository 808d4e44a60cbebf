// How a run of a job ends: in order or by a fault; what its ranks and callers are told; and how its
// memory comes back. See job.h for the states it goes through. Owned by Control; under control's
// lock.
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

  // Fills in the names; `what` says what happened, and goes into the message.
  v1::Fault MakeFault(const Job& job, const char* code, const std::string& what) const;
  void BlameRank(const Job& job, Rank rank, v1::Fault& fault) const;

  // Tells every rank and answers all pending calls. Ignored if the job has ended already: the first
  // cause stands.
  void Fail(Job& job, v1::Fault fault);
  void EndInOrder(Job& job);

  // Lanes close when the core loops are told, a little after the ranks.
  void SendEndCommands(Job& job);
  // Every core loop has ended the job: what it held comes back. What is known of it stays a while.
  void Release(Job& job);
  // Released jobs are remembered once their memory is free, and the oldest are forgotten.
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
