// Removes keys that every rank of a job has asked to remove (RemoveKeys). The steps:
//   1. gather     every rank has called, with the same keys; nothing refers to keys by number
//   2. unlink     the regions that ranks share for the keys leave their tables; every core loop
//                 unlinks the keys, and reports when no transport uses their memory any more
//   3. free       the job forgets the keys; then their memory is freed and returned to the quota
//   4. answer     all ranks at once, so that no rank adds keys while another one still waits
// Only the job's last batches are removed, so numbers of keys and regions stay dense on
// both ends. Why they may be used again: docs/internals/jobs.md.
// Owned by Control; under control's lock, except the long work (ControlTurns::RunLong).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/lanes/rank_memories.h"

namespace phub::server {

class GroupKeys;

// Moves what is to be freed of a removed batch to `memory`.
void TakeMemoryOf(BatchRecord& record, std::vector<std::shared_ptr<const void>>& memory);
// The job's core loops have no chunks of the batch any more: later batches may have their numbers.
// REQUIRES: no batch is being built.
void ReturnPlaces(Job& job, const BatchRecord& record);

class KeyRemovals final : public JobObserver {
 public:
  KeyRemovals(Context& context, JobTable& jobs, Sessions& sessions, Ending& ending,
              PendingCalls& pending_calls, HostMemory& host_memory, RankMemories& rank_memories,
              TenantShares& shares, GroupKeys& groups)
      : context_(context),
        jobs_(jobs),
        sessions_(sessions),
        ending_(ending),
        pending_calls_(pending_calls),
        host_memory_(host_memory),
        rank_memories_(rank_memories),
        shares_(shares),
        groups_(groups) {}

  void RemoveKeys(const v1::RemoveKeysRequest& request, Answer<v1::RemoveKeysResponse> answer);
  void HandleKeysRemoved(Job& job, const Event& event);
  // Takes the next step if it is possible. Called at every poll of a running job.
  void Advance(Job& job);
  // Whether Advance waits for work that may end without a call or an event.
  static bool Waits(const Job& job);

  // JobObserver.
  void OnOver(Job& job, const absl::Status& why) override;

 private:
  absl::Status CheckCall(const Job& job, Rank rank, const v1::RemoveKeysRequest& request) const;
  absl::Status CheckRemovable(const Job& job, std::uint32_t first_batch) const;
  static absl::Status CheckRanks(const Job& job);
  void Refuse(Job& job, const absl::Status& why);
  bool Agrees(Job& job, Rank rank, std::uint32_t first_batch);
  void FailOverRemoval(Job& job, Rank rank, std::uint32_t first_batch, Rank other,
                       const std::string& others_call);
  bool MayUnlink(const Job& job) const;
  void Unlink(Job& job);
  void ForgetBetweenBuilds(Job& job);
  void Forget(Job& job);
  void Finish(Job& job);

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  Ending& ending_;
  PendingCalls& pending_calls_;
  HostMemory& host_memory_;
  RankMemories& rank_memories_;
  TenantShares& shares_;
  GroupKeys& groups_;
};

}  // namespace phub::server
