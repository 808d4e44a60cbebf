#include "server/control/racks/rack_groups.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "server/control/jobs/ending.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/racks/group_list.h"
#include "server/control/racks/group_messages.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {

void RackGroups::HandleMessage(Job& job, RackIndex from, const v1::PeerMessage& message,
                               const std::shared_ptr<const void>& owner) {
  PHUB_ON_CONTROL();
  using Case = v1::PeerMessage::MessageCase;
  switch (message.message_case()) {
    case Case::kGroupAsked: return list_.HandleAsked(job, from, {owner, &message.group_asked()});
    case Case::kGroupKeys: return HandleKeys(job, from, {owner, &message.group_keys()});
    case Case::kGroupReserved: return list_.HandleReserved(job, from, message.group_reserved());
    case Case::kGroupDecided: return HandleDecided(job, from, message.group_decided());
    case Case::kGroupReleased: return list_.HandleReleased(job, from, message.group_released());
    case Case::kGroupRemoval: return HandleRemoval(job, from, message.group_removal());
    case Case::kGroupAdded: return HandleAdded(job, from, message.group_added());
    default: return;  // from a newer daemon
  }
}

// Rack 0 adds a plan and numbers.
std::size_t RackGroups::BatchBytesMax() const { return kPeerMessageBytesMax / 2; }

// ---- The rack of a member ----------------------------------------------------------------------

void RackGroups::AskForBatch(Job& job, Rank rank, std::shared_ptr<const v1::AddKeysRequest> request,
                             std::function<void(const absl::Status&)> then) {
  PHUB_ON_CONTROL();
  RackRun& run = *job.rack_run;
  const auto is_same = [&](const GroupAsked& each) {
    return IsAsked(each, request->group(), request->batch());
  };
  if (const auto asked = std::ranges::find_if(run.group_asked, is_same);
      asked != run.group_asked.end())
    return asked->waiting.push_back(std::move(then));
  run.group_asked.push_back({.name = request->group().name(),
                             .ranks = RanksIn(request->group()),
                             .batch = request->batch(),
                             .waiting = {std::move(then)}});
  v1::PeerMessage message;
  v1::PeerGroupAsked& asked = *message.mutable_group_asked();
  *asked.mutable_group() = request->group();
  asked.set_rank(rank.value + job.config.rank_base);
  asked.set_batch(request->batch());
  *asked.mutable_keys() = FillInDefaults(request->keys());
  for (const v1::GroupSpec& each : request->declared())
    if (std::popcount(RacksOf(job, each)) > 1) *asked.add_declared() = each;
  if (context_.options.rack_index == 0)
    return list_.HandleAsked(job, RackIndex{0},
                             std::make_shared<const v1::PeerGroupAsked>(std::move(asked)));
  messages_.SendToRack(RackIndex{0}, job.account.incarnation, std::move(message));
}

// ---- The racks of the members ------------------------------------------------------------------

void RackGroups::HandleKeys(Job& job, RackIndex from, const Keys& keys) {
  PHUB_ON_CONTROL();
  const std::uint64_t self = exchange::RackBit(RackIndex{context_.options.rack_index});
  const bool is_of = context_.options.is_aggregator() || (RacksOf(job, keys->group()) & self) != 0;
  if (from.value != 0 || !IsWellFormed(job, keys->group(), keys->rank()) || !is_of ||
      keys->number() == 0 || keys->first_chunks_size() != static_cast<int>(context_.cores.size()))
    return context_.counters.Add(ControlCounter::peers_refused_place);
  Take(job, keys);
}

std::uint32_t RackGroups::BatchesHere(const Job& job, const Group& group) const {
  for (std::uint32_t rack = 0; rack < job.rack_run->racks.size(); ++rack) {
    if ((group.exchange->plan->neighbors >> rack & 1) == 0) continue;
    const auto is_open = [](const PeerLanePlace& lane) { return lane.connection != nullptr; };
    if (!std::ranges::all_of(job.rack_run->racks[rack].lanes, is_open)) return 0;
  }
  std::uint32_t batches = 0;
  for (const std::shared_ptr<BatchRecord>& batch : group.batches) {
    if (batch->tickets.empty() || !context_.cores.Acknowledged(batch->tickets)) break;
    ++batches;
  }
  return batches;
}

void RackGroups::AnnounceProgress(Job& job) {
  PHUB_ON_CONTROL();
  if (job.running()) Advance(job);
  if (job.running()) list_.RefuseRemovals(job);
  if (!job.running()) return;
  bool progress = false;
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (group->exchange == nullptr || group->exchange->batches_told == group->batches.size())
      continue;
    const std::uint32_t batches = BatchesHere(job, *group);
    if (batches <= group->exchange->batches_told) continue;
    group->exchange->batches_told = batches;
    progress = true;
    v1::PeerMessage message;
    message.mutable_group_added()->set_number(group->exchange->number);
    message.mutable_group_added()->set_batches(batches);
    message.set_incarnation(job.account.incarnation.value);
    const SharedPeerMessage shared(std::move(message));
    for (std::uint32_t rack = 0; rack < context_.options.racks_with_ranks(); ++rack) {
      if (rack != context_.options.rack_index && (group->exchange->racks >> rack & 1) != 0)
        messages_.SendShared(RackIndex{rack}, shared);
    }
  }
  if (progress) pending_calls_.AnswerAcknowledged(job);
}

bool RackGroups::Waits(const Job& job) {
  if (job.rack_run == nullptr || !job.running()) return false;
  const auto is_refused = [](const auto& each) {
    return each.second.state == GroupReservation::State::kRefused;
  };
  const auto is_unknown = [](const std::shared_ptr<Group>& group) {
    return group->exchange != nullptr && !group->batches.empty() && !group->batches.back()->held &&
           group->exchange->batches_told < group->batches.size();
  };
  return std::ranges::any_of(job.rack_run->group_reservations, is_refused) ||
         std::ranges::any_of(job.groups, is_unknown);
}

void RackGroups::HandleAdded(Job& job, RackIndex from, const v1::PeerGroupAdded& added) {
  PHUB_ON_CONTROL();
  // Reports may be faster than rack 0's decision, about all groups at the most.
  std::map<std::uint32_t, std::vector<std::uint32_t>>& known = job.rack_run->group_batches;
  const bool has_room = known.contains(added.number()) || known.size() < kWideGroupsMax;
  if (!Accept(context_, from, added.number() != 0 && has_room)) return;
  std::vector<std::uint32_t>& racks = known[added.number()];
  racks.resize(job.rack_run->racks.size(), 0);
  racks[from.value] = std::max(racks[from.value], added.batches());
  pending_calls_.AnswerAcknowledged(job);
}

bool RackGroups::HaveBatches(const Job& job, const Group& group, std::uint32_t batches) const {
  PHUB_ON_CONTROL();
  if (group.exchange->batches_told < batches) return false;
  const std::uint64_t self = exchange::RackBit(RackIndex{context_.options.rack_index});
  const auto found = job.rack_run->group_batches.find(group.exchange->number);
  if (found == job.rack_run->group_batches.end()) return false;
  for (std::uint32_t rack = 0; rack < found->second.size(); ++rack) {
    const std::uint64_t bit = exchange::RackBit(RackIndex{rack});
    if ((group.exchange->racks & ~self & bit) != 0 && found->second[rack] < batches) return false;
  }
  return true;
}

void RackGroups::OnOver(Job& job, const absl::Status& why) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  job.rack_run->group_reservations.clear();  // they refer to memory that is freed with the job
  for (const GroupAsked& asked : std::exchange(job.rack_run->group_asked, {}))
    for (const auto& then : asked.waiting) then(why);
}

}  // namespace phub::server
