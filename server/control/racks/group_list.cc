// Rack 0's list of the groups of several racks: the second part of RackGroups.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/group_text.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

// Its place in the queue stays until ServeNext().
void Begin(std::function<void()>& work) {
  const std::function<void()> begun = std::move(work);
  begun();
}

}  // namespace

void RackGroups::HandleAsked(Job& job, RackIndex from, Asked asked) {
  PHUB_ON_CONTROL();
  if (context_.options.rack_index != 0 || !IsWellFormed(job, asked->group(), asked->rank()) ||
      asked->rank() / job.config.ranks_per_rack != from.value || asked->keys().empty())
    return context_.counters.Add(ControlCounter::peers_refused_place);
  Serve(job, asked);
}

// Requests are served one after the other, since a batch is placed without the lock.
void RackGroups::Serve(Job& job, const Asked& asked) {
  std::deque<std::function<void()>>& work = job.rack_run->group_work;
  work.push_back([this, &job, asked] {
    const absl::StatusOr<std::size_t> made = FindOrMake(job, *asked);
    if (!made.ok()) return FailOverKeys(job, std::string(made.status().message()));
    const Group& group = *job.rack_run->groups_made[*made].group;
    if (asked->batch() < group.batches.size()) return Compare(job, group, asked);
    if (asked->batch() > group.batches.size())
      return FailOverKeys(
          job, fmt::format("rank {} added batch {} of keys to {}, and its next is {}",
                           asked->rank(), asked->batch(), Describe(group), group.batches.size()));
    Place(job, *made, asked);
  });
  if (work.size() == 1) Begin(work.front());
}

void RackGroups::ServeNext(Job& job) {
  std::deque<std::function<void()>>& work = job.rack_run->group_work;
  PHUB_CHECK(!work.empty(), "job={}", job.name());
  work.pop_front();
  if (!work.empty() && job.running()) Begin(work.front());
}

absl::StatusOr<std::size_t> RackGroups::FindOrMake(Job& job, const v1::PeerGroupAsked& asked) {
  RackRun& run = *job.rack_run;
  const v1::GroupSpec& spec = asked.group();
  for (std::size_t i = 0; i < run.groups_made.size(); ++i) {
    const Group& group = *run.groups_made[i].group;
    if (group.name != spec.name()) continue;
    const auto is_member = [&](std::uint32_t each) {
      return std::ranges::binary_search(group.ranks, each);
    };
    if (std::ranges::none_of(spec.ranks(), is_member)) continue;
    if (std::ranges::equal(group.ranks, spec.ranks())) return i;
    return absl::InvalidArgumentError(
        DescribeDisagreement(job, group, InRack(job, asked.rank()), DescribeRanks(spec.ranks())));
  }
  if (run.groups_made.size() == kWideGroupsMax)
    return absl::ResourceExhaustedError(fmt::format(
        "group {} cannot be made: job {} has {} groups of several racks, and at most {} "
        "are possible. They stay until the job ends, so use one again",
        spec.name(), job.name(), run.groups_made.size(), kWideGroupsMax));
  const std::uint64_t racks = RacksOf(job, spec);
  absl::StatusOr<std::string> plan = plans_.PlanForGroup(run, racks);
  if (!plan.ok())
    return absl::InvalidArgumentError(fmt::format("group {} (ranks {}) has no plan: {}",
                                                  spec.name(), DescribeRanks(spec.ranks()),
                                                  std::string(plan.status().message())));
  auto group = std::make_shared<Group>();
  group->name = spec.name();
  group->ranks = RanksIn(spec);
  group->first = InRack(job, asked.rank());
  group->members = std::make_shared<const Members>();
  group->exchange = std::make_shared<GroupExchange>();
  group->exchange->number = static_cast<std::uint32_t>(run.groups_made.size()) + 1;
  group->exchange->racks = racks;
  group->exchange->bins = BinsOfGroup(job, group->name);
  run.group_numbers.resize(context_.cores.size());
  run.groups_made.push_back({std::move(group), *std::move(plan)});
  return run.groups_made.size() - 1;
}

// Counts the batch's chunks on each core loop, as the racks of the group will place them.
void RackGroups::Place(Job& job, std::size_t made, const Asked& asked) {
  const std::shared_ptr<Group> group = job.rack_run->groups_made[made].group;
  const std::shared_ptr<KeyBuild> build =
      StartKeyBuild(job, InRack(job, asked->rank()), host_memory_);
  BuildForGroup(job, *build, group);
  build->exchange_shards.clear();
  build->given = std::shared_ptr<const KeySpecs>(asked, &asked->keys());
  ++job.long_work;
  context_.turns.RunLong(
      static_cast<std::size_t>(asked->keys_size()), job.account.tenant,
      [build] { PlanKeys(*build); },
      [this, &job, made, asked, build] {
        --job.long_work;
        if (!job.running()) return;
        Give(job, made, asked, *build);
      });
}

void RackGroups::Give(Job& job, std::size_t made, const Asked& asked, KeyBuild& placed) {
  RackRun& run = *job.rack_run;
  Group& group = *run.groups_made[made].group;
  if (!placed.status.ok())
    return FailOverKeys(
        job, fmt::format("rank {} added keys to {} that cannot be added: {}", asked->rank(),
                         Describe(group), std::string(placed.status.message())));
  v1::PeerMessage message;
  v1::PeerGroupKeys& keys = *message.mutable_group_keys();
  std::vector<std::uint32_t> counts(context_.cores.size(), 0);
  for (const std::vector<BinIndex>& key : placed.placement)
    for (const BinIndex bin : key) ++counts[bin.value];
  for (std::size_t core = 0; core < counts.size(); ++core) {
    keys.add_first_chunks(counts[core] == 0 ? 0 : run.group_numbers[core].Append(counts[core]));
    if (run.group_numbers[core].end() > kChunksPerShardMax)
      return FailOverKeys(
          job, fmt::format("rank {} added keys to {}: groups of several racks would have {} chunks "
                           "on core loop {}, and at most {} are possible; use a larger chunk_bytes",
                           asked->rank(), Describe(group), run.group_numbers[core].end(), core,
                           kChunksPerShardMax));
  }
  *keys.mutable_group() = asked->group();
  keys.set_rank(asked->rank());
  keys.set_batch(asked->batch());
  *keys.mutable_keys() = asked->keys();
  keys.set_number(group.exchange->number);
  if (asked->batch() == 0) keys.set_plan(run.groups_made[made].plan);
  group.exchange->bins = std::move(placed.bins);
  for (const v1::KeySpec& key : placed.keys) group.key_names->insert(key.name());
  auto record = std::make_shared<BatchRecord>();
  record->first = InRack(job, asked->rank());
  record->keys = std::make_shared<KeyList>(placed.keys.begin(), placed.keys.end());
  group.batches.push_back(std::move(record));
  message.set_incarnation(job.account.incarnation.value);
  const SharedPeerMessage shared(std::move(message));
  for (std::uint32_t rack = 1; rack < context_.options.racks_with_ranks(); ++rack) {
    if ((group.exchange->racks >> rack & 1) != 0) messages_.SendShared(RackIndex{rack}, shared);
  }
  const std::uint64_t racks = group.exchange->racks;
  ServeNext(job);
  if ((racks & 1) != 0 && job.running()) Take(job, {shared.message, &shared.message->group_keys()});
}

void RackGroups::Compare(Job& job, const Group& group, const Asked& asked) {
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
        FailOverKeys(job, fmt::format("racks disagree on the keys they added to group {}: {}",
                                      asked->group().name(),
                                      Describe(*difference, job, *record, asked->batch(),
                                               InRack(job, asked->rank()))));
      });
}

}  // namespace phub::server
