// Keys of groups: some ranks of a job add keys that only they push, and remove the group again. The
// first batch makes the group. Its members agree among themselves: other ranks neither know of it
// nor are waited for. A removal has the steps of keys/key_removals.h. Owned by Control; under
// control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/keys/keys.h"
#include "server/control/lanes/rank_memories.h"

namespace phub::server {

class GroupKeys final : public JobObserver {
 public:
  GroupKeys(Context& context, Sessions& sessions, Ending& ending, PendingCalls& pending_calls,
            HostMemory& host_memory, RankMemories& rank_memories, TenantShares& shares, Keys& keys,
            GroupRacks& racks)
      : context_(context),
        sessions_(sessions),
        ending_(ending),
        pending_calls_(pending_calls),
        host_memory_(host_memory),
        rank_memories_(rank_memories),
        shares_(shares),
        keys_(keys),
        racks_(racks) {}

  // AddKeys with a group, and RemoveKeys with a group's id.
  void AddKeys(std::shared_ptr<const v1::AddKeysRequest> request,
               Answer<v1::AddKeysResponse> answer);
  void Remove(const v1::RemoveKeysRequest& request, Answer<v1::RemoveKeysResponse> answer);
  // A batch of a group that has members in several racks, from rack 0. `first`: the rank that added
  // it, numbered in this rack, or a number beyond. REQUIRES: no batch of the job is being built.
  void BuildFromRack0(Job& job, const std::shared_ptr<Group>& group, Rank first,
                      std::shared_ptr<const KeySpecs> keys, std::vector<std::uint32_t> numbers,
                      const Keys::Done& done);
  // That batch is held until one of these calls: the core loops get it,
  void HandOut(Job& job, BatchRecord& batch);
  // or it is no longer the group's last one. The flag reports that its memory is free; then its
  // charges are returned. REQUIRES: no batch of the job is being built.
  DoneFlag Discard(Job& job, const std::shared_ptr<Group>& group);
  void ReturnCharges(Job& job, const BatchRecord& batch);
  // All racks of the group, which has members in several, have taken the step of its removal; or it
  // is not removed, because of `refusal`. REQUIRES: this rack has taken it.
  void GoOnRemoving(Job& job, const std::shared_ptr<Group>& group, v1::PeerGroupStep step);
  void RefuseRemoval(Group& group, const absl::Status& refusal);
  // The group of that name that has one of the ranks of the job, if there is one in this rack.
  static std::shared_ptr<Group> FindByRanks(const Job& job, const v1::GroupSpec& spec);
  // A batch of a group was built: the group has it, and the job has the group.
  static void Enter(Job& job, KeyBuild& build);

  void HandleKeysRemoved(Job& job, const Event& event);
  // Takes the next steps of removals. Called at every poll of a running job.
  void Advance(Job& job);
  // Whether Advance waits for work that may end without a call or an event.
  static bool Waits(const Job& job);

  // JobObserver.
  void OnOver(Job& job, const absl::Status& why) override;

 private:
  using Request = std::shared_ptr<const v1::AddKeysRequest>;
  // A member's call that adds a batch.
  struct Adding {
    Request request;
    Answer<v1::AddKeysResponse> answer;
  };
  absl::Status CheckJob(const Job& job, const std::string& group) const;
  // The group that the call is about; null: it makes a new one.
  absl::StatusOr<std::shared_ptr<Group>> FindGroup(Job& job, Rank rank, const v1::GroupSpec& spec);
  absl::Status CheckCall(Job& job, Rank rank, const Group& group, const Adding& adding);
  void Ask(Job& job, Rank rank, const std::shared_ptr<Group>& found, const Adding& adding);
  void Build(Job& job, Rank rank, const std::shared_ptr<Group>& group, const Adding& adding);
  void Compare(Job& job, const std::shared_ptr<Group>& group, const Adding& adding);
  void Share(const std::shared_ptr<Group>& group, const Adding& adding);
  void AnswerAdded(const Group& group, const BatchRecord& record, const Adding& adding);
  absl::Status Refuse(absl::Status why);
  absl::Status Disagree(Job& job, Rank rank, const std::string& what);

  absl::Status CheckRemoval(Job& job, Rank rank, const Group& group);
  absl::Status CheckMembers(const Job& job, const Group& group) const;
  bool HasCalled(const Job& job, const Group& group) const;
  void AdvanceRemoval(Job& job, Group& group);
  void Unlink(Job& job, Group& group);
  void Forget(Job& job, Group& group);
  static void ForgetBatch(Job& job, BatchRecord& batch,
                          std::vector<std::shared_ptr<const void>>& unwanted);
  void Finish(Job& job, const std::shared_ptr<Group>& group);

  Context& context_;
  Sessions& sessions_;
  Ending& ending_;
  PendingCalls& pending_calls_;
  HostMemory& host_memory_;
  RankMemories& rank_memories_;
  TenantShares& shares_;
  Keys& keys_;
  GroupRacks& racks_;
};

}  // namespace phub::server
