#include "server/control/racks/group_list.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/declared_groups.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/group_text.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/racks/group_messages.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

std::string DeclaredName(const v1::GroupSpec& spec) {
  return fmt::format("{} {}", fmt::join(spec.ranks(), ","), spec.name());
}

bool HasGroup(const RackRun& run, const v1::GroupSpec& spec) {
  return std::ranges::any_of(run.groups_made, [&](const auto& each) {
    const Group& group = *each.second.group;
    return group.name == spec.name() && std::ranges::equal(group.ranks, spec.ranks());
  });
}

// Each declared group is of several racks. A rank may be in several of them.
bool IsDeclared(const Job& job, const v1::PeerGroupAsked& asked) {
  if (static_cast<std::size_t>(asked.declared_size()) > kDeclaredGroupsMax) return false;
  return std::ranges::all_of(asked.declared(), [&](const v1::GroupSpec& each) {
    return !each.ranks().empty() && IsWellFormed(job, each, each.ranks(0));
  });
}

}  // namespace

void GroupList::HandleAsked(Job& job, RackIndex from, const Asked& asked) {
  PHUB_ON_CONTROL();
  const bool is_due = context_.options.rack_index == 0 &&
                      IsWellFormed(job, asked->group(), asked->rank()) &&
                      asked->rank() / job.config.ranks_per_rack == from.value &&
                      !asked->keys().empty() && IsDeclared(job, *asked);
  if (Accept(context_, from, is_due)) Serve(job, asked);
}

// Requests are served one after the other, since plans are made and batches placed without the
// lock. The job's record stays meanwhile.
void GroupList::Serve(Job& job, const Asked& asked) {
  if (IsAnswered(job, *asked)) return;
  std::deque<Asked>& work = job.rack_run->group_work;
  work.push_back(asked);
  if (work.size() == 1) Begin(job);
}

void GroupList::ServeNext(Job& job) {
  std::deque<Asked>& work = job.rack_run->group_work;
  PHUB_CHECK(!work.empty(), "job={}", job.name());
  work.pop_front();
  if (!work.empty() && job.running()) Begin(job);
}

void GroupList::Begin(Job& job) {
  const Asked asked = job.rack_run->group_work.front();
  const absl::StatusOr<GroupMade*> found = Find(job, *asked);
  if (!found.ok()) return FailOverGroup(ending_, job, std::string(found.status().message()));
  GroupMade* const made = *found;
  const std::size_t batches = made == nullptr ? 0 : made->group->batches.size();
  if (made != nullptr && made->is_going()) {
    made->later.push_back(asked);
    return ServeNext(job);
  }
  if (asked->batch() < batches) return Compare(job, *made->group, asked);
  if (asked->batch() > batches)
    return FailOverGroup(
        ending_, job,
        fmt::format("rank {} added batch {} of keys to group {} (ranks {}), and its next is "
                    "{}",
                    asked->rank(), asked->batch(), asked->group().name(),
                    DescribeRanks(asked->group().ranks()), batches));
  if (made == nullptr) return MakePlan(job, asked);
  if (made->removal != nullptr)
    return FailOverGroup(ending_, job,
                         fmt::format("rank {} adds keys to {}, which ranks of other racks remove",
                                     asked->rank(), Describe(*made->group)));
  Place(job, *made, asked);
}

// Null: there is no such group yet.
absl::StatusOr<GroupMade*> GroupList::Find(Job& job, const v1::PeerGroupAsked& asked) {
  RackRun& run = *job.rack_run;
  const v1::GroupSpec& spec = asked.group();
  for (auto& [number, made] : run.groups_made) {
    const Group& group = *made.group;
    if (group.name != spec.name()) continue;
    const auto is_member = [&](std::uint32_t each) {
      return std::ranges::binary_search(group.ranks, each);
    };
    if (std::ranges::none_of(spec.ranks(), is_member)) continue;
    if (std::ranges::equal(group.ranks, spec.ranks())) return &made;
    return absl::InvalidArgumentError(
        DescribeDisagreement(job, group, InRack(job, asked.rank()), DescribeRanks(spec.ranks())));
  }
  if (run.groups_made.size() == kWideGroupsMax)
    return absl::ResourceExhaustedError(fmt::format(
        "group {} cannot be made: job {} has {} groups of several racks, and at most {} "
        "are possible. Remove groups that are not used any more",
        spec.name(), job.name(), run.groups_made.size(), kWideGroupsMax));
  return nullptr;
}

// The groups that the members declared with this one and that have no plan yet are planned with it.
void GroupList::MakePlan(Job& job, const Asked& asked) {
  RackRun& run = *job.rack_run;
  const auto declared = run.groups_declared.find(DeclaredName(asked->group()));
  if (declared != run.groups_declared.end()) {
    GroupPlanText plan = std::move(declared->second);
    run.groups_declared.erase(declared);
    return Place(job, Make(job, *asked, std::move(plan)), asked);
  }
  const auto names = std::make_shared<std::vector<std::string>>();
  const auto plans = std::make_shared<absl::StatusOr<std::vector<GroupPlanText>>>();
  names->push_back(DeclaredName(asked->group()));
  std::vector<std::uint64_t> racks = {RacksOf(job, asked->group())};
  for (const v1::GroupSpec& each : asked->declared()) {
    std::string name = DeclaredName(each);
    const bool is_new = std::ranges::find(*names, name) == names->end() &&
                        !run.groups_declared.contains(name) && !HasGroup(run, each);
    if (!is_new || run.groups_declared.size() + names->size() > kWideGroupsMax) continue;
    names->push_back(std::move(name));
    racks.push_back(RacksOf(job, each));
  }
  ++job.long_work;
  context_.turns.RunLong(
      kGroupPlanUnits, job.account.tenant,
      [plans, planning = StartGroupPlanning(run, std::move(racks))] {
        *plans = PlanForGroups(planning);
      },
      [this, &job, asked, names, plans] {
        --job.long_work;
        if (!job.running()) return;
        if (!plans->ok())
          return FailOverGroup(
              ending_, job,
              fmt::format("group {} (ranks {}) has no plan: {}", asked->group().name(),
                          DescribeRanks(asked->group().ranks()),
                          std::string(plans->status().message())));
        for (std::size_t i = 0; i < names->size(); ++i) {
          plan::AddTo(job.rack_run->group_times, (**plans)[i].times);
          if (i > 0) job.rack_run->groups_declared[(*names)[i]] = std::move((**plans)[i]);
        }
        Place(job, Make(job, *asked, std::move((**plans)[0])), asked);
      });
}

GroupMade& GroupList::Make(Job& job, const v1::PeerGroupAsked& asked, GroupPlanText plan) {
  RackRun& run = *job.rack_run;
  auto group = std::make_shared<Group>();
  group->name = asked.group().name();
  group->ranks = RanksIn(asked.group());
  group->first = InRack(job, asked.rank());
  group->members = std::make_shared<const Members>();
  group->exchange = std::make_shared<GroupExchange>();
  group->exchange->number = ++run.group_number;
  group->exchange->racks = plan.participants;
  group->exchange->racks_with_members = RacksOf(job, asked.group());
  group->exchange->bins = BinsOfGroup(job, group->name);
  run.group_numbers.resize(context_.cores.size());
  GroupMade& made = run.groups_made[run.group_number];
  made.group = std::move(group);
  made.plan = std::move(plan);
  return made;
}

// The group is gone in all racks.
void GroupList::Unmake(Job& job, std::uint32_t number) {
  RackRun& run = *job.rack_run;
  const auto found = run.groups_made.find(number);
  plan::TakeFrom(run.group_times, found->second.plan.times);
  const std::vector<Asked> later = std::move(found->second.later);
  run.groups_made.erase(found);
  for (const Asked& asked : later) Serve(job, asked);
}

// Counts the batch's chunks on each core loop, as the racks of the group will place them.
void GroupList::Place(Job& job, GroupMade& made, const Asked& asked) {
  const std::shared_ptr<KeyBuild> build =
      StartKeyBuild(job, InRack(job, asked->rank()), host_memory_);
  BuildForGroup(job, *build, made.group);
  build->exchange_shards.clear();
  build->given = std::shared_ptr<const KeySpecs>(asked, &asked->keys());
  ++job.long_work;
  context_.turns.RunLong(
      static_cast<std::size_t>(asked->keys_size()), job.account.tenant,
      [build] { PlanKeys(*build); },
      [this, &job, &made, asked, build] {
        --job.long_work;
        if (job.running()) Give(job, made, asked, *build);
      });
}

void GroupList::Give(Job& job, GroupMade& made, const Asked& asked, KeyBuild& placed) {
  RackRun& run = *job.rack_run;
  Group& group = *made.group;
  if (!placed.status.ok())
    return FailOverGroup(
        ending_, job,
        fmt::format("rank {} added keys to {} that cannot be added: {}", asked->rank(),
                    Describe(group), std::string(placed.status.message())));
  auto record = std::make_shared<BatchRecord>();
  v1::PeerMessage message;
  v1::PeerGroupKeys& keys = *message.mutable_group_keys();
  std::vector<std::uint32_t> counts(context_.cores.size(), 0);
  for (const std::vector<BinIndex>& key : placed.placement)
    for (const BinIndex bin : key) ++counts[bin.value];
  for (std::uint32_t core = 0; core < counts.size(); ++core) {
    const std::uint32_t first = counts[core] == 0 ? 0 : run.group_numbers[core].Take(counts[core]);
    keys.add_first_chunks(first);
    if (counts[core] > 0) record->chunks.push_back({BinIndex{core}, first, counts[core]});
    if (run.group_numbers[core].end() > kChunksPerShardMax)
      return FailOverGroup(
          ending_, job,
          fmt::format("rank {} added keys to {}: groups of several racks would have {} chunks "
                      "on core loop {}, and at most {} are possible; use a larger chunk_bytes",
                      asked->rank(), Describe(group), run.group_numbers[core].end(), core,
                      kChunksPerShardMax));
  }
  *keys.mutable_group() = asked->group();
  keys.set_rank(asked->rank());
  keys.set_batch(asked->batch());
  *keys.mutable_keys() = asked->keys();
  keys.set_number(group.exchange->number);
  if (asked->batch() == 0) keys.set_plan(made.plan.text);
  made.attempt = std::make_unique<GroupAttempt>();
  made.attempt->awaited = group.exchange->racks;
  made.attempt->before = std::exchange(group.exchange->bins, std::move(placed.bins));
  for (const v1::KeySpec& key : placed.keys) group.key_names->insert(key.name());
  record->first = InRack(job, asked->rank());
  record->keys = std::make_shared<KeyList>(placed.keys.begin(), placed.keys.end());
  group.batches.push_back(std::move(record));
  const SharedPeerMessage shared = SendToGroup(job, group.exchange->racks, std::move(message));
  const std::uint64_t racks = group.exchange->racks;
  ServeNext(job);
  if ((racks & 1) != 0 && job.running())
    groups_.Take(job, {shared.message, &shared.message->group_keys()});
}

void GroupList::Compare(Job& job, const Group& group, const Asked& asked) {
  const auto difference = std::make_shared<KeyDifference>();
  const std::shared_ptr<const BatchRecord> record = group.batches[asked->batch()];
  ++job.long_work;
  context_.turns.RunLong(
      static_cast<std::size_t>(asked->keys_size()), job.account.tenant,
      [difference, record, asked] { *difference = CompareKeys(*record->keys, asked->keys()); },
      [this, &job, difference, record, asked] {
        --job.long_work;
        if (!job.running()) return;
        if (!difference->found) return ServeNext(job);
        context_.counters.Add(ControlCounter::keys_refused_mismatch);
        FailOverGroup(
            ending_, job,
            fmt::format(
                "racks disagree on the keys they added to group {}: {}", asked->group().name(),
                Describe(*difference, job, *record, asked->batch(), InRack(job, asked->rank()))));
      });
}

}  // namespace phub::server
