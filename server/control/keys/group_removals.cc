// Removes groups: the second part of GroupKeys.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "server/control/jobs/group_text.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_removals.h"
#include "server/control/on_control.h"

namespace phub::server {

void GroupKeys::Remove(const v1::RemoveKeysRequest& request,
                       Answer<v1::RemoveKeysResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  const auto refuse = [&](const absl::Status& why) {
    answer(context_.Refuse(ControlCounter::key_removals_refused, why), {});
  };
  const auto found = std::ranges::find(job.groups, request.group_id(), &Group::id);
  if (found == job.groups.end()) {
    if (request.group_id() <= job.groups_made) return answer(absl::OkStatus(), {});  // a retry
    return refuse(
        absl::InvalidArgumentError(fmt::format("{} removed a group that job {} never had",
                                               DescribeRankBriefly(job, seat->rank), job.name())));
  }
  Group& group = **found;
  if (absl::Status status = CheckRemoval(job, seat->rank, group); !status.ok())
    return job.running() ? refuse(status) : answer(status, {});
  if (group.removal == nullptr) {
    group.removal = std::make_unique<GroupRemoval>();
    group.removal->first = seat->rank;
    group.removal->answers.resize(group.members->count());
  }
  Answer<v1::RemoveKeysResponse>& place =
      group.removal->answers[group.members->IndexOf(seat->rank)];
  if (place) {  // the worker reconnected, and calls again
    place(absl::CancelledError(
              fmt::format("{} of job {} removed {} again, which canceled this call",
                          DescribeRankBriefly(job, seat->rank), job.name(), Describe(group))),
          {});
  } else {
    ++group.removal->called_count;
  }
  place = std::move(answer);
  Advance(job);
}

absl::Status GroupKeys::CheckRemoval(Job& job, Rank rank, const Group& group) {
  const std::uint32_t member = group.members->IndexOf(rank);
  if (member == kNoMember)
    return absl::InvalidArgumentError(fmt::format("{} is not a member of {} of job {}",
                                                  DescribeRankBriefly(job, rank), Describe(group),
                                                  job.name()));
  if (host_memory_.registers_memory())
    return absl::FailedPreconditionError(
        fmt::format("job {} cannot remove {}: this daemon serves RDMA, and memory that is "
                    "registered with devices stays registered until the job ends",
                    job.name(), Describe(group)));
  if (group.next_batch[member] < group.batches.size())
    return Disagree(
        job, rank,
        fmt::format("{} added {} batches of keys to {}, and {} removes it after {}",
                    DescribeRankBriefly(job, group.batches.back()->first), group.batches.size(),
                    Describe(group), DescribeRankBriefly(job, rank), group.next_batch[member]));
  return CheckMembers(job, group);
}

// A member that has left will never call.
absl::Status GroupKeys::CheckMembers(const Job& job, const Group& group) const {
  for (const Rank rank : group.members->ranks()) {
    if (job.members[rank.value].state != Member::State::kLeft) continue;
    return absl::FailedPreconditionError(fmt::format("job {} cannot remove {}: {} has left",
                                                     job.name(), Describe(group),
                                                     DescribeRank(job, rank)));
  }
  return absl::OkStatus();
}

bool GroupKeys::Waits(const Job& job) {
  return std::ranges::any_of(job.groups, [](const std::shared_ptr<Group>& group) {
    return group->removal != nullptr && group->removal->state != GroupRemoval::State::kCalled &&
           group->removal->state != GroupRemoval::State::kUnlinkedHere &&
           group->removal->called_count == group->members->count();
  });
}

void GroupKeys::Advance(Job& job) {
  PHUB_ON_CONTROL();
  const auto is_removed = [](const std::shared_ptr<Group>& group) {
    return group->removal != nullptr;
  };
  if (!job.running() || std::ranges::none_of(job.groups, is_removed)) return;
  const std::vector<std::shared_ptr<Group>> groups = job.groups;  // steps remove some
  for (const std::shared_ptr<Group>& group : groups) {
    if (group->removal == nullptr) continue;
    AdvanceRemoval(job, *group);
    const GroupRemoval* const removal = group->removal.get();
    if (removal != nullptr && removal->state == GroupRemoval::State::kFreeing &&
        (removal->memory_free == nullptr || removal->memory_free->load()))
      Finish(job, group);
  }
}

void GroupKeys::AdvanceRemoval(Job& job, Group& group) {
  GroupRemoval& removal = *group.removal;
  if (removal.state == GroupRemoval::State::kGathering) {
    if (absl::Status status = CheckMembers(job, group); !status.ok())
      return RefuseRemoval(group, status);
    if (HasCalled(job, group)) {
      removal.state = GroupRemoval::State::kAgreed;
      if (group.exchange != nullptr) {
        removal.state = GroupRemoval::State::kCalled;
        racks_.TellOfRemoval(job, group, v1::PEER_GROUP_STEP_CALLED);
        return;  // the group may have no removal any more
      }
    }
  }
  if (removal.state == GroupRemoval::State::kAgreed && job.unlinking == nullptr) Unlink(job, group);
  // A build has copies of the numbers in use.
  if (removal.state == GroupRemoval::State::kUnlinked && job.key_build == nullptr)
    Forget(job, group);
}

void GroupKeys::RefuseRemoval(Group& group, const absl::Status& refusal) {
  const std::unique_ptr<GroupRemoval> refused = std::exchange(group.removal, nullptr);
  for (const Answer<v1::RemoveKeysResponse>& answer : refused->answers)
    if (answer) answer(context_.Refuse(ControlCounter::key_removals_refused, refusal), {});
}

void GroupKeys::GoOnRemoving(Job& job, const std::shared_ptr<Group>& group,
                             v1::PeerGroupStep step) {
  PHUB_ON_CONTROL();
  group->removal->state = step == v1::PEER_GROUP_STEP_CALLED ? GroupRemoval::State::kAgreed
                                                             : GroupRemoval::State::kUnlinked;
  Advance(job);
}

// Every member of this rack has called, and the group is complete. A call that is being answered
// refers to its batch.
bool GroupKeys::HasCalled(const Job& job, const Group& group) const {
  if (group.removal->called_count < group.members->count()) return false;
  const auto is_pending = [&](const std::shared_ptr<BatchRecord>& batch) {
    return batch->tickets.empty() || !context_.cores.Acknowledged(batch->tickets) ||
           std::ranges::find(job.pending, batch, &PendingCall::of_group) != job.pending.end();
  };
  return std::ranges::none_of(group.batches, is_pending);
}

void GroupKeys::Unlink(Job& job, Group& group) {
  GroupRemoval& removal = *group.removal;
  removal.state = GroupRemoval::State::kUnlinking;
  removal.removal.group = group.members.get();
  removal.removal.shared.resize(job.members.size());
  for (const Rank rank : group.members->ranks()) {
    RankMemories::Withdrawn withdrawn =
        RankMemories::WithdrawGroup(job.members[rank.value], group.id);
    removal.removal.shared[rank.value] = std::move(withdrawn.pushable);
    removal.of_members.push_back(withdrawn.bytes);
    for (auto& each : withdrawn.memory) removal.unwanted.push_back(std::move(each));
  }
  removal.cores_left = context_.cores.size();
  job.unlinking = &removal.removal;
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    context_.cores[core].Send({.kind = Command::Kind::kRemoveKeys,
                               .shard = job.shards[core].get(),
                               .removal = &removal.removal});
  }
}

void GroupKeys::HandleKeysRemoved(Job& job, const Event& event) {
  PHUB_ON_CONTROL();
  if (!job.running()) return;  // the memory is freed with the job
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (group->removal == nullptr || &group->removal->removal != event.removal) continue;
    PHUB_CHECK(group->removal->cores_left > 0, "job={}", job.name());
    if (--group->removal->cores_left > 0) return;
    job.unlinking = nullptr;
    group->removal->state = GroupRemoval::State::kUnlinked;
    if (group->exchange != nullptr) {
      group->removal->state = GroupRemoval::State::kUnlinkedHere;
      const std::shared_ptr<Group> unlinked = group;
      racks_.TellOfRemoval(job, *unlinked, v1::PEER_GROUP_STEP_UNLINKED);
    }
    return Advance(job);
  }
}

void GroupKeys::ForgetBatch(Job& job, BatchRecord& batch,
                            std::vector<std::shared_ptr<const void>>& unwanted) {
  ReturnPlaces(job, batch);
  job.group_key_numbers.Return(batch.first_key - kGroupKeysFirst,
                               static_cast<std::uint32_t>(batch.keys->size()));
  job.parameter_bytes -= batch.parameter_bytes;
  TakeMemoryOf(batch, unwanted);
}

void GroupKeys::Forget(Job& job, Group& group) {
  group.removal->state = GroupRemoval::State::kFreeing;
  auto unwanted = std::make_shared<std::vector<std::shared_ptr<const void>>>(
      std::exchange(group.removal->unwanted, {}));
  for (const std::shared_ptr<BatchRecord>& batch : group.batches)
    ForgetBatch(job, *batch, *unwanted);
  shares_.ShareOutAgain(job.account.tenant);
  group.removal->memory_free = host_memory_.FreeLater(std::move(unwanted));
}

void GroupKeys::Finish(Job& job, const std::shared_ptr<Group>& group) {
  const std::unique_ptr<GroupRemoval> removal = std::move(group->removal);
  std::uint64_t bytes = 0;
  std::size_t keys = 0;
  for (const std::shared_ptr<BatchRecord>& batch : group->batches) {
    bytes += batch->bytes;
    keys += batch->keys->size();
    context_.ledger.ReturnKeys(job.account, batch->keys->size(), batch->only_here);
  }
  for (std::uint32_t member = 0; member < group->members->count(); ++member) {
    Member& owner = job.members[group->members->RankOf(member).value];
    RankMemories::ForgetGroup(owner, group->id);
    owner.memory.worker_bytes -= removal->of_members[member];
    bytes += removal->of_members[member];
  }
  host_memory_.left().Check();  // members may still map what they shared: charged to the tenant
  context_.ledger.Return(job.account, bytes);
  job.memory_bytes -= bytes;
  std::erase(job.groups, group);
  context_.counters.Add(ControlCounter::key_removals);
  context_.counters.Add(ControlCounter::keys_removed, keys);
  context_.log.Info("event=group_removed tenant={} job=\"{}\" group=\"{}\" keys={} memory_bytes={}",
                    job.account.tenant, job.name(), group->name, keys, bytes);
  if (group->exchange != nullptr) racks_.TellOfRemoval(job, *group, v1::PEER_GROUP_STEP_FREED);
  for (const Answer<v1::RemoveKeysResponse>& answer : removal->answers)
    answer(absl::OkStatus(), {});
}

// Core loops refer to the groups until they have ended the job.
void GroupKeys::OnOver(Job& job, const absl::Status& why) {
  PHUB_ON_CONTROL();
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (group->removal == nullptr) continue;
    for (const Answer<v1::RemoveKeysResponse>& answer : std::exchange(group->removal->answers, {}))
      if (answer) answer(why, {});
  }
}

}  // namespace phub::server
