// Batches of groups of several racks at rack 0, from its message to the decision: the fourth part
// of RackGroups.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/group_text.h"
#include "server/control/on_control.h"
#include "server/control/racks/group_list.h"
#include "server/control/racks/group_messages.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

bool IsOf(const GroupMade& made, const v1::GroupSpec& spec) {
  return made.group->name == spec.name() && std::ranges::equal(made.group->ranks, spec.ranks());
}

}  // namespace

void ReturnNumbers(RackRun& run, const BatchRecord& batch) {
  for (const NumberRange& range : batch.chunks)
    run.group_numbers[range.bin.value].Return(range.first, range.count);
}

// To all racks of the group but this one.
SharedPeerMessage GroupList::SendToGroup(Job& job, std::uint64_t racks, v1::PeerMessage message) {
  message.set_incarnation(job.account.incarnation.value);
  SharedPeerMessage shared(std::move(message));
  for (std::uint32_t rack = 0; rack < job.rack_run->racks.size(); ++rack) {
    if (rack != context_.options.rack_index && (racks >> rack & 1) != 0)
      messages_.SendShared(RackIndex{rack}, shared);
  }
  return shared;
}

// A rack asked for a batch before it heard that the batch is refused. Its calls get the refusal.
bool GroupList::IsAnswered(const Job& job, const v1::PeerGroupAsked& asked) {
  const std::uint32_t rack = asked.rank() / job.config.ranks_per_rack;
  return std::ranges::any_of(job.rack_run->groups_made, [&](const auto& each) {
    const GroupMade& made = each.second;
    return made.attempt != nullptr && made.attempt->is_refused &&
           (made.attempt->awaited >> rack & 1) != 0 && IsOf(made, asked.group()) &&
           asked.batch() + 1 == made.group->batches.size();
  });
}

GroupMade* GroupList::FindAwaited(Job& job, RackIndex from, std::uint32_t number,
                                  std::uint32_t batch, bool is_refused) {
  const auto found = job.rack_run->groups_made.find(number);
  if (found == job.rack_run->groups_made.end()) return nullptr;
  GroupMade& made = found->second;
  const bool is_due = made.attempt != nullptr && made.attempt->is_refused == is_refused &&
                      (made.attempt->awaited >> from.value & 1) != 0 &&
                      batch + 1 == made.group->batches.size();
  return is_due ? &made : nullptr;
}

void GroupList::HandleReserved(Job& job, RackIndex from, const v1::PeerGroupReserved& reserved) {
  PHUB_ON_CONTROL();
  GroupMade* const made =
      FindAwaited(job, from, reserved.number(), reserved.batch(), /*is_refused=*/false);
  if (!Accept(context_, from, made != nullptr)) return;
  GroupAttempt& attempt = *made->attempt;
  attempt.awaited &= ~exchange::RackBit(from);
  if (reserved.code() != 0 && attempt.refusal.ok())
    attempt.refusal =
        absl::Status(static_cast<absl::StatusCode>(reserved.code()), reserved.message());
  if (attempt.awaited == 0) Decide(job, *made);
}

void GroupList::Decide(Job& job, GroupMade& made) {
  const std::shared_ptr<Group> group = made.group;
  const absl::Status refusal = made.attempt->refusal;
  v1::PeerMessage message;
  v1::PeerGroupDecided& decided = *message.mutable_group_decided();
  decided.set_number(group->exchange->number);
  decided.set_batch(static_cast<std::uint32_t>(group->batches.size() - 1));
  if (refusal.ok()) {
    made.attempt = nullptr;
  } else {
    decided.set_code(refusal.raw_code());
    decided.set_message(std::string(refusal.message()));
    made.attempt->is_refused = true;
    made.attempt->awaited = group->exchange->racks;
    // The first request is under way, and changes nothing: the batch exists.
    std::deque<Asked>& work = job.rack_run->group_work;
    if (!work.empty())
      work.erase(std::remove_if(work.begin() + 1, work.end(),
                                [&](const Asked& each) { return IsAnswered(job, *each); }),
                 work.end());
    context_.log.Info(
        "event=group_batch_refused tenant={} job=\"{}\" group=\"{}\" batch={} why=\"{}\"",
        job.account.tenant, job.name(), group->name, decided.batch(), decided.message());
  }
  const SharedPeerMessage shared = SendToGroup(job, group->exchange->racks, std::move(message));
  if ((group->exchange->racks & 1) != 0)
    groups_.HandleDecided(job, RackIndex{0}, shared.message->group_decided());
}

void GroupList::HandleReleased(Job& job, RackIndex from, const v1::PeerGroupReleased& released) {
  PHUB_ON_CONTROL();
  GroupMade* const made =
      FindAwaited(job, from, released.number(), released.batch(), /*is_refused=*/true);
  if (!Accept(context_, from, made != nullptr)) return;
  made->attempt->awaited &= ~exchange::RackBit(from);
  if (made->attempt->awaited == 0) EndAttempt(job, *made);
}

// No rack has anything of the refused batch.
void GroupList::EndAttempt(Job& job, GroupMade& made) {
  const std::unique_ptr<GroupAttempt> attempt = std::move(made.attempt);
  const std::shared_ptr<Group> of = made.group;
  Group& group = *of;
  const std::shared_ptr<BatchRecord> batch = group.batches.back();
  group.batches.pop_back();
  group.exchange->bins = attempt->before;
  for (const v1::KeySpec& key : *batch->keys) group.key_names->erase(key.name());
  ReturnNumbers(*job.rack_run, *batch);
  if (group.batches.empty()) return Unmake(job, group.exchange->number);
  if (made.removal != nullptr) TakeNextStep(job, made);
  const auto still = job.rack_run->groups_made.find(of->exchange->number);
  if (!job.running() || still == job.rack_run->groups_made.end()) return;
  for (const Asked& asked : std::exchange(made.later, {})) Serve(job, asked);
}

}  // namespace phub::server
