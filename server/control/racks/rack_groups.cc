#include "server/control/racks/rack_groups.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/group_text.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

bool IsAsked(const GroupAsked& asked, const v1::GroupSpec& spec, std::uint32_t batch) {
  return asked.name == spec.name() && asked.batch == batch &&
         std::ranges::equal(asked.ranks, spec.ranks());
}

}  // namespace

void RackGroups::FailOverKeys(Job& job, const std::string& what) {
  ending_.Fail(job, ending_.MakeFault(job, "keys_mismatch", what));
}

void RackGroups::HandleMessage(Job& job, RackIndex from, const v1::PeerMessage& message,
                               const std::shared_ptr<const void>& owner) {
  PHUB_ON_CONTROL();
  switch (message.message_case()) {
    case v1::PeerMessage::kGroupAsked:
      return HandleAsked(job, from, {owner, &message.group_asked()});
    case v1::PeerMessage::kGroupKeys: return HandleKeys(job, from, {owner, &message.group_keys()});
    case v1::PeerMessage::kGroupAdded: return HandleAdded(job, from, message.group_added());
    default: return;  // from a newer daemon
  }
}

std::uint64_t RackGroups::RacksOf(const Job& job, const v1::GroupSpec& spec) const {
  std::uint64_t racks = 0;
  for (const std::uint32_t rank : spec.ranks())
    racks |= exchange::RackBit(RackIndex{rank / job.config.ranks_per_rack});
  return racks;
}

// A message between daemons is validated like one of a worker.
bool RackGroups::IsWellFormed(const Job& job, const v1::GroupSpec& spec, std::uint32_t rank) const {
  std::uint32_t next = 0;
  for (const std::uint32_t each : spec.ranks()) {
    if (each < next || each >= job.config.ranks_of_job) return false;
    next = each + 1;
  }
  return IsName(spec.name()) && std::ranges::find(spec.ranks(), rank) != spec.ranks().end() &&
         std::popcount(RacksOf(job, spec)) > 1;
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
  if (context_.options.rack_index == 0)
    return Serve(job, std::make_shared<const v1::PeerGroupAsked>(std::move(asked)));
  messages_.SendToRack(RackIndex{0}, job.account.incarnation, std::move(message));
}

// ---- The racks of the members ------------------------------------------------------------------

void RackGroups::HandleKeys(Job& job, RackIndex from, Keys keys) {
  PHUB_ON_CONTROL();
  const std::uint64_t self = exchange::RackBit(RackIndex{context_.options.rack_index});
  if (from.value != 0 || !IsWellFormed(job, keys->group(), keys->rank()) ||
      (RacksOf(job, keys->group()) & self) == 0 || keys->number() == 0 ||
      keys->first_chunks_size() != static_cast<int>(context_.cores.size()))
    return context_.counters.Add(ControlCounter::peers_refused_place);
  Take(job, keys);
}

void RackGroups::Take(Job& job, const Keys& keys) {
  if (job.key_build != nullptr) {
    return server::Keys::AfterBuild(job, [this, &job, keys] {
      if (job.running()) Take(job, keys);
    });
  }
  std::shared_ptr<Group> group = GroupKeys::FindByRanks(job, keys->group());
  const Rank first = InRack(job, keys->rank());
  if (group != nullptr && !std::ranges::equal(group->ranks, keys->group().ranks()))
    return FailOverKeys(
        job, DescribeDisagreement(job, *group, first, DescribeRanks(keys->group().ranks())));
  if (group == nullptr) group = MakeGroup(job, *keys);
  if (group == nullptr) return;
  if (keys->batch() != group->batches.size() || group->exchange == nullptr)
    return FailOverKeys(job, fmt::format("rack 0 sent batch {} of the keys of {} out of order",
                                         keys->batch(), Describe(*group)));
  std::vector<std::uint32_t> numbers;
  for (const std::uint32_t each : keys->first_chunks())
    numbers.push_back(exchange::kGroupNumbersFirst + each);
  keys_.BuildFromRack0(
      job, group, first, std::shared_ptr<const KeySpecs>(keys, &keys->keys()), std::move(numbers),
      [this, &job, group, keys](const absl::Status& status) {
        if (!job.running()) return;
        if (!status.ok())
          return FailOverKeys(
              job,
              fmt::format("{} cannot add the keys of {}: {}",
                          context_.options.DescribeRack(RackIndex{context_.options.rack_index}),
                          Describe(*group), std::string(status.message())));
        if (keys->batch() == 0) {
          RackRun& run = *job.rack_run;
          const std::uint64_t more =
              group->exchange->plan->neighbors & ~run.exchange->plan.neighbors;
          run.group_neighbors |= more;
          peer_lanes_.GrantPeerLanes(job, run.protocol.AddNeighbors(more));
        }
        Answer(job, *keys);
        AnnounceProgress(job);
      });
}

// Null: the job has failed.
std::shared_ptr<Group> RackGroups::MakeGroup(Job& job, const v1::PeerGroupKeys& keys) {
  const std::uint64_t racks = RacksOf(job, keys.group());
  auto plan = RackPlans::ReadGroupPlan(*job.rack_run, racks, keys.plan());
  if (!plan.ok()) {
    FailOverKeys(job, fmt::format("the plan of group {} is refused: {}", keys.group().name(),
                                  std::string(plan.status().message())));
    return nullptr;
  }
  auto group = std::make_shared<Group>();
  group->name = keys.group().name();
  group->ranks = RanksIn(keys.group());
  group->first = InRack(job, keys.rank());
  std::vector<Rank> here;
  for (const std::uint32_t each : group->ranks) {
    if (InRack(job, each).value < job.settings.world_size) here.push_back(InRack(job, each));
  }
  group->members = std::make_shared<const Members>(here, InJob(group->ranks));
  group->next_batch.assign(here.size(), 0);
  group->exchange = std::make_shared<GroupExchange>();
  group->exchange->number = keys.number();
  group->exchange->racks = racks;
  group->exchange->plan = *std::move(plan);
  group->exchange->bins = BinsOfGroup(job, group->name);
  for (std::uint32_t core = 0; core < context_.cores.size(); ++core)
    group->exchange->choosers.emplace_back(*group->exchange->plan, CoreIndex{core});
  return group;
}

// The calls that wait for the batch go on.
void RackGroups::Answer(Job& job, const v1::PeerGroupKeys& keys) {
  std::vector<GroupAsked>& asked = job.rack_run->group_asked;
  const auto found = std::ranges::find_if(
      asked, [&](const GroupAsked& each) { return IsAsked(each, keys.group(), keys.batch()); });
  if (found == asked.end()) return;
  const auto waiting = std::move(found->waiting);
  asked.erase(found);
  for (const auto& then : waiting) then(absl::OkStatus());
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

void RackGroups::HandleAdded(Job& job, RackIndex from, const v1::PeerGroupAdded& added) {
  PHUB_ON_CONTROL();
  if (added.number() == 0 || added.number() > kWideGroupsMax ||
      from.value >= context_.options.racks_with_ranks())
    return context_.counters.Add(ControlCounter::peers_refused_place);
  std::vector<std::uint32_t>& racks = job.rack_run->group_batches[added.number()];
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
  for (const GroupAsked& asked : std::exchange(job.rack_run->group_asked, {}))
    for (const auto& then : asked.waiting) then(why);
}

}  // namespace phub::server
