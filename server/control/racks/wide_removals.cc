// Removes groups of several racks, step by step, at rack 0 and in the racks of the members. Numbers
// of the group's chunks on lanes are used again only after the last step: until then no rack may
// take a message about a removed chunk for one about a new chunk.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "server/control/jobs/group_text.h"
#include "server/control/keys/group_keys.h"
#include "server/control/on_control.h"
#include "server/control/racks/group_list.h"
#include "server/control/racks/group_messages.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

GroupRemoval::State StateAfter(v1::PeerGroupStep step) {
  return step == v1::PEER_GROUP_STEP_CALLED ? GroupRemoval::State::kCalled
                                            : GroupRemoval::State::kUnlinkedHere;
}

}  // namespace

void RackGroups::TellOfRemoval(Job& job, const Group& group, v1::PeerGroupStep step) {
  PHUB_ON_CONTROL();
  v1::PeerMessage message;
  v1::PeerGroupRemoval& removal = *message.mutable_group_removal();
  removal.set_number(group.exchange->number);
  removal.set_step(step);
  removal.set_batches(static_cast<std::uint32_t>(group.batches.size()));
  if (step == v1::PEER_GROUP_STEP_FREED) job.rack_run->group_batches.erase(removal.number());
  const RackIndex self{context_.options.rack_index};
  if (self.value == 0) return list_.HandleStep(job, self, removal);
  messages_.SendToRack(RackIndex{0}, job.account.incarnation, std::move(message));
}

void RackGroups::HandleRemoval(Job& job, RackIndex from, const v1::PeerGroupRemoval& removal) {
  PHUB_ON_CONTROL();
  if (context_.options.rack_index == 0) return list_.HandleStep(job, from, removal);
  if (Accept(context_, from, from.value == 0)) GoOnRemoving(job, removal);
}

// ---- Rack 0 ------------------------------------------------------------------------------------

void GroupList::HandleStep(Job& job, RackIndex from, const v1::PeerGroupRemoval& removal) {
  const auto found = job.rack_run->groups_made.find(removal.number());
  if (!Accept(context_, from, found != job.rack_run->groups_made.end())) return;
  GroupMade& made = found->second;
  const GroupExchange& exchange = *made.group->exchange;
  const bool is_call = removal.step() == v1::PEER_GROUP_STEP_CALLED;
  const std::uint64_t racks = is_call ? exchange.racks_with_members : exchange.racks;
  if (!Accept(context_, from, (racks >> from.value & 1) != 0)) return;
  if (made.removal == nullptr && is_call) {
    made.removal = std::make_unique<GroupRemovalSteps>();
    made.removal->awaited = racks;
  }
  const bool is_due = made.removal != nullptr && made.removal->step == removal.step() &&
                      (made.removal->awaited >> from.value & 1) != 0;
  if (!Accept(context_, from, is_due)) return;
  // A refused batch counts until every rack has released it.
  const bool is_refused = made.attempt != nullptr && made.attempt->is_refused;
  const std::size_t batches = made.group->batches.size() - (is_refused ? 1 : 0);
  if (removal.batches() != batches)
    return FailOverGroup(ending_, job,
                         fmt::format("{} removes {} with {} batches of keys, and {} were added",
                                     context_.options.DescribeRack(from), Describe(*made.group),
                                     removal.batches(), batches));
  made.removal->awaited &= ~exchange::RackBit(from);
  TakeNextStep(job, made);
}

// Once all have taken the step. Aggregators begin when the members' racks have called; until then
// they may hold a refused batch.
void GroupList::TakeNextStep(Job& job, GroupMade& made) {
  GroupRemovalSteps& removal = *made.removal;
  if (removal.awaited != 0 || made.attempt != nullptr) return RefuseRemovals(job);
  const GroupExchange& exchange = *made.group->exchange;
  if (removal.step == v1::PEER_GROUP_STEP_FREED) {
    for (const std::shared_ptr<BatchRecord>& batch : made.group->batches)
      ReturnNumbers(*job.rack_run, *batch);
    return Unmake(job, exchange.number);
  }
  v1::PeerGroupRemoval next;
  next.set_number(exchange.number);
  next.set_step(removal.step);
  removal.step = static_cast<v1::PeerGroupStep>(removal.step + 1);
  removal.awaited = exchange.racks;
  TellStep(job, exchange.racks, next);
}

void GroupList::TellStep(Job& job, std::uint64_t racks, const v1::PeerGroupRemoval& step) {
  v1::PeerMessage message;
  *message.mutable_group_removal() = step;
  const SharedPeerMessage shared = SendToGroup(job, racks, std::move(message));
  if ((racks & 1) != 0) groups_.GoOnRemoving(job, shared.message->group_removal());
}

// "rank 5 (node5)", or empty.
std::string GroupList::DepartedMember(const Job& job, const Group& group) {
  for (const std::uint32_t rank : group.ranks) {
    if (rank < job.members.size()) {
      const Member& member = job.members[rank];
      if (member.state == Member::State::kLeft)
        return fmt::format("rank {} ({})", rank, Printable(member.host));
    }
    const auto left = job.rack_run->ranks_left.find(rank);
    if (left != job.rack_run->ranks_left.end())
      return fmt::format("rank {} ({})", rank, Printable(left->second));
  }
  return {};
}

// A member that has left will never call. Racks whose members have called wait for rack 0.
void GroupList::RefuseRemovals(Job& job) {
  std::vector<std::pair<std::uint64_t, v1::PeerGroupRemoval>> refused;
  for (auto& [number, made] : job.rack_run->groups_made) {
    if (made.removal == nullptr || made.removal->step != v1::PEER_GROUP_STEP_CALLED) continue;
    const std::string left = DepartedMember(job, *made.group);
    if (left.empty()) continue;
    v1::PeerGroupRemoval refusal;
    refusal.set_number(number);
    refusal.set_step(v1::PEER_GROUP_STEP_CALLED);
    refusal.set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
    refusal.set_message(fmt::format("job {} cannot remove {}: {} has left", job.name(),
                                    Describe(*made.group), left));
    refused.emplace_back(made.group->exchange->racks_with_members & ~made.removal->awaited,
                         std::move(refusal));
    made.removal = nullptr;
  }
  for (const auto& [racks, refusal] : refused) TellStep(job, racks, refusal);
}

// ---- The racks of the members ------------------------------------------------------------------

void RackGroups::GoOnRemoving(Job& job, const v1::PeerGroupRemoval& step) {
  const auto found = std::ranges::find_if(job.groups, [&](const std::shared_ptr<Group>& group) {
    return group->exchange != nullptr && group->exchange->number == step.number();
  });
  if (!Accept(context_, RackIndex{0}, found != job.groups.end())) return;
  const std::shared_ptr<Group> group = *found;
  // No member calls an aggregator. Rack 0 has decided about all batches before.
  if (step.step() == v1::PEER_GROUP_STEP_CALLED && context_.options.is_aggregator() &&
      group->removal == nullptr && !job.rack_run->group_reservations.contains(step.number())) {
    group->removal = std::make_unique<GroupRemoval>();
    group->removal->state = GroupRemoval::State::kCalled;
  }
  const bool is_due = group->removal != nullptr && group->removal->state == StateAfter(step.step());
  if (!Accept(context_, RackIndex{0}, is_due)) return;
  if (step.code() == 0) return keys_.GoOnRemoving(job, group, step.step());
  keys_.RefuseRemoval(*group,
                      absl::Status(static_cast<absl::StatusCode>(step.code()), step.message()));
}

}  // namespace phub::server
