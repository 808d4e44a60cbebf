// Batches of groups of several racks in the racks of their members, from rack 0's message to its
// decision: the second part of RackGroups.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/group_text.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/racks/group_list.h"
#include "server/control/racks/group_messages.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

struct ReadPlan {
  absl::StatusOr<std::shared_ptr<const exchange::RackPlan>> plan = nullptr;
};

}  // namespace

// The first batch has the group's plan.
void RackGroups::Take(Job& job, const Keys& keys) {
  if (keys->batch() != 0) return Build(job, keys, nullptr);
  const auto read = std::make_shared<ReadPlan>();
  ++job.long_work;
  context_.turns.RunLong(
      kGroupPlanUnits, job.account.tenant,
      [read, keys, reading = StartReadingGroupPlan(*job.rack_run, RacksOf(job, keys->group()))] {
        read->plan = ReadGroupPlan(reading, keys->plan());
      },
      [this, &job, keys, read] {
        --job.long_work;
        if (!job.running()) return;
        if (read->plan.ok()) return Build(job, keys, *read->plan);
        FailOverGroup(ending_, job,
                      fmt::format("the plan of group {} is refused: {}", keys->group().name(),
                                  std::string(read->plan.status().message())));
      });
}

// Null: the first batch came before.
void RackGroups::Build(Job& job, const Keys& keys, const Plan& plan) {
  if (job.key_build != nullptr) {
    return server::Keys::AfterBuild(job, [this, &job, keys, plan] {
      if (job.running()) Build(job, keys, plan);
    });
  }
  std::shared_ptr<Group> group = GroupKeys::FindByRanks(job, keys->group());
  const Rank first = InRack(job, keys->rank());
  if (group != nullptr && !std::ranges::equal(group->ranks, keys->group().ranks()))
    return FailOverGroup(
        ending_, job,
        DescribeDisagreement(job, *group, first, DescribeRanks(keys->group().ranks())));
  if (group == nullptr && plan != nullptr) group = MakeGroup(job, *keys, plan);
  auto& reservations = job.rack_run->group_reservations;
  if (group == nullptr || group->exchange == nullptr || group->batches.size() != keys->batch() ||
      group->exchange->number != keys->number() || reservations.contains(keys->number()))
    return FailOverGroup(ending_, job,
                         fmt::format("rack 0 sent batch {} of the keys of group {} out of order",
                                     keys->batch(), keys->group().name()));
  GroupReservation& reservation = reservations[keys->number()];
  reservation.keys = keys;
  reservation.group = group;
  reservation.bins = group->exchange->bins;
  reservation.choosers = group->exchange->choosers;
  std::vector<std::uint32_t> numbers;
  for (const std::uint32_t each : keys->first_chunks())
    numbers.push_back(exchange::kGroupNumbersFirst + each);
  keys_.BuildFromRack0(job, group, first, std::shared_ptr<const KeySpecs>(keys, &keys->keys()),
                       std::move(numbers),
                       [this, &job, number = keys->number()](const absl::Status& status) {
                         if (job.running()) OnBuilt(job, number, status);
                       });
}

void RackGroups::OnBuilt(Job& job, std::uint32_t number, const absl::Status& status) {
  GroupReservation& reservation = job.rack_run->group_reservations.at(number);
  if (!status.ok()) return AnswerReserved(job, reservation, status);
  reservation.batch = reservation.group->batches.back();
  reservation.state = GroupReservation::State::kTakingPages;
  Advance(job);
}

std::shared_ptr<Group> RackGroups::MakeGroup(Job& job, const v1::PeerGroupKeys& keys,
                                             const Plan& plan) {
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
  group->exchange->racks = plan->participants;
  group->exchange->racks_with_members = RacksOf(job, keys.group());
  group->exchange->plan = plan;
  group->exchange->bins = BinsOfGroup(job, group->name);
  for (std::uint32_t core = 0; core < context_.cores.size(); ++core)
    group->exchange->choosers.emplace_back(*plan, CoreIndex{core});
  return group;
}

void RackGroups::AnswerReserved(Job& job, GroupReservation& reservation,
                                const absl::Status& status) {
  reservation.state = GroupReservation::State::kAnswered;
  const RackIndex self{context_.options.rack_index};
  v1::PeerMessage message;
  v1::PeerGroupReserved& reserved = *message.mutable_group_reserved();
  reserved.set_number(reservation.keys->number());
  reserved.set_batch(reservation.keys->batch());
  if (!status.ok()) {
    reserved.set_code(status.raw_code());
    reserved.set_message(fmt::format("{} cannot add the keys of {}: {}",
                                     context_.options.DescribeRack(self),
                                     Describe(*reservation.group), std::string(status.message())));
  }
  if (self.value == 0) return list_.HandleReserved(job, self, reserved);
  messages_.SendToRack(RackIndex{0}, job.account.incarnation, std::move(message));
}

void RackGroups::HandleDecided(Job& job, RackIndex from, const v1::PeerGroupDecided& decided) {
  PHUB_ON_CONTROL();
  const auto found = job.rack_run->group_reservations.find(decided.number());
  const bool is_due = from.value == 0 && found != job.rack_run->group_reservations.end() &&
                      found->second.state == GroupReservation::State::kAnswered &&
                      found->second.keys->batch() == decided.batch() &&
                      (decided.code() != 0 || found->second.batch != nullptr);
  if (Accept(context_, from, is_due)) Decided(job, decided);
}

void RackGroups::Decided(Job& job, const v1::PeerGroupDecided& decided) {
  const auto found = job.rack_run->group_reservations.find(decided.number());
  if (decided.code() == 0) {
    GroupReservation reservation = std::move(found->second);
    job.rack_run->group_reservations.erase(found);
    return Commit(job, std::move(reservation));
  }
  found->second.refusal =
      absl::Status(static_cast<absl::StatusCode>(decided.code()), decided.message());
  found->second.state = GroupReservation::State::kRefused;
  Advance(job);
}

void RackGroups::Commit(Job& job, GroupReservation reservation) {
  RackRun& run = *job.rack_run;
  keys_.HandOut(job, *reservation.batch);
  if (!job.running()) return;
  if (reservation.keys->batch() == 0) {
    const std::uint64_t more =
        reservation.group->exchange->plan->neighbors & ~run.exchange->plan.neighbors;
    run.group_neighbors |= more;
    peer_lanes_.GrantPeerLanes(job, run.protocol.AddNeighbors(more));
  }
  for (const auto& then : TakeWaiting(job, *reservation.keys)) then(absl::OkStatus());
  AnnounceProgress(job);
}

// Takes the next steps of reservations that wait for pages, for a build, or for memory to be freed.
void RackGroups::Advance(Job& job) {
  std::map<std::uint32_t, GroupReservation>& all = job.rack_run->group_reservations;
  std::vector<std::uint32_t> numbers;  // steps change the map
  for (const auto& [number, reservation] : all) numbers.push_back(number);
  for (const std::uint32_t number : numbers) {
    const auto found = all.find(number);
    if (found == all.end() || !job.running()) continue;
    GroupReservation& reservation = found->second;
    if (reservation.state == GroupReservation::State::kTakingPages) {
      const PagesFlag& flag = reservation.batch->pages;
      const PrefaultState pages = flag == nullptr ? PrefaultState::kTaken : flag->load();
      if (pages == PrefaultState::kWaiting) continue;
      AnswerReserved(job, reservation,
                     pages == PrefaultState::kTaken
                         ? absl::OkStatus()
                         : absl::ResourceExhaustedError(fmt::format(
                               "job {}: phubd could not allocate memory for the keys; free memory "
                               "on its host, or lower memory_max",
                               job.name())));
    } else if (AdvanceRefused(job, reservation)) {
      Release(job, number);
    }
  }
}

// What is asked for after the message to rack 0 is a new try, which the refusal does not answer.
void RackGroups::Release(Job& job, std::uint32_t number) {
  const auto found = job.rack_run->group_reservations.find(number);
  const GroupReservation refused = std::move(found->second);
  job.rack_run->group_reservations.erase(found);
  const auto waiting = TakeWaiting(job, *refused.keys);
  v1::PeerMessage message;
  message.mutable_group_released()->set_number(number);
  message.mutable_group_released()->set_batch(refused.keys->batch());
  const RackIndex self{context_.options.rack_index};
  if (self.value == 0) {
    list_.HandleReleased(job, self, message.group_released());
  } else {
    messages_.SendToRack(RackIndex{0}, job.account.incarnation, std::move(message));
  }
  for (const auto& then : waiting) then(refused.refusal);
}

// Returns whether this rack holds nothing of the batch any more.
bool RackGroups::AdvanceRefused(Job& job, GroupReservation& reservation) {
  using State = GroupReservation::State;
  if (reservation.state == State::kRefused && reservation.batch == nullptr) return true;
  if (reservation.state == State::kRefused && job.key_build == nullptr) {
    reservation.group->exchange->bins = std::move(reservation.bins);
    reservation.group->exchange->choosers = std::move(reservation.choosers);
    reservation.memory_free = keys_.Discard(job, reservation.group);
    reservation.state = State::kFreeing;
  }
  if (reservation.state != State::kFreeing ||
      (reservation.memory_free != nullptr && !reservation.memory_free->load()))
    return false;
  keys_.ReturnCharges(job, *reservation.batch);
  return true;
}

// The calls that wait for the batch.
std::vector<std::function<void(const absl::Status&)>> RackGroups::TakeWaiting(
    Job& job, const v1::PeerGroupKeys& keys) {
  std::vector<GroupAsked>& asked = job.rack_run->group_asked;
  const auto found = std::ranges::find_if(
      asked, [&](const GroupAsked& each) { return IsAsked(each, keys.group(), keys.batch()); });
  if (found == asked.end()) return {};
  auto waiting = std::move(found->waiting);
  asked.erase(found);
  return waiting;
}

}  // namespace phub::server
