#include "server/control/keys/group_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/declared_groups.h"
#include "common/base/printable.h"
#include "server/control/jobs/group_text.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

absl::Status InvalidGroup(std::string message) {
  return absl::InvalidArgumentError(std::move(message));
}

std::uint32_t RanksOfJob(const Job& job) {
  return std::max(job.settings.world_size, job.settings.ranks_of_job);
}

// The rank adds keys to this group, or declares it.
absl::Status CheckRanks(const Job& job, Rank rank, const v1::GroupSpec& spec) {
  const std::string who = DescribeRankBriefly(job, rank);
  if (!IsName(spec.name()))
    return InvalidGroup(
        fmt::format("{} of job {} named a group '{}'; a name has 1 to {} bytes of "
                    "printable UTF-8",
                    who, job.name(), Printable(spec.name(), 64), kNameBytesMax));
  for (int i = 0; i < spec.ranks_size(); ++i) {
    const bool in_order = i == 0 || spec.ranks(i - 1) < spec.ranks(i);
    if (in_order && spec.ranks(i) < RanksOfJob(job)) continue;
    return InvalidGroup(
        fmt::format("{} gave group {} of job {} the ranks {}; they must be ascending "
                    "and less than world_size {}",
                    who, spec.name(), job.name(), DescribeRanks(spec.ranks()), RanksOfJob(job)));
  }
  return absl::OkStatus();
}

absl::Status CheckDeclared(const Job& job, Rank rank, const v1::AddKeysRequest& request) {
  if (static_cast<std::size_t>(request.declared_size()) > kDeclaredGroupsMax)
    return InvalidGroup(fmt::format(
        "{} declared {} groups of job {} together, and at most {} can "
        "be",
        DescribeRankBriefly(job, rank), request.declared_size(), job.name(), kDeclaredGroupsMax));
  for (const v1::GroupSpec& each : request.declared())
    if (absl::Status status = CheckRanks(job, rank, each); !status.ok()) return status;
  return absl::OkStatus();
}

absl::Status CheckSpec(const Job& job, Rank rank, const v1::GroupSpec& spec) {
  if (absl::Status status = CheckRanks(job, rank, spec); !status.ok()) return status;
  const std::string who = DescribeRankBriefly(job, rank);
  if (std::ranges::find(spec.ranks(), rank.value + job.config.rank_base) == spec.ranks().end())
    return InvalidGroup(fmt::format("{} is not a member of group {} (ranks {}) of job {}", who,
                                    spec.name(), DescribeRanks(spec.ranks()), job.name()));
  return absl::OkStatus();
}

// Whether some member is a rank of another rack.
bool IsOfSeveralRacks(const Job& job, const v1::GroupSpec& spec) {
  return std::ranges::any_of(spec.ranks(), [&](std::uint32_t rank) {
    return InRack(job, rank).value >= job.settings.world_size;
  });
}

}  // namespace

absl::Status GroupKeys::Refuse(absl::Status why) {
  return context_.Refuse(ControlCounter::keys_refused_invalid, std::move(why));
}

// The job fails: another member would wait forever.
absl::Status GroupKeys::Disagree(Job& job, Rank rank, const std::string& what) {
  ending_.FailOverKeys(job, rank, what);
  return absl::InvalidArgumentError(job.fault.message());
}

absl::Status GroupKeys::CheckJob(const Job& job, const std::string& group) const {
  const char* why = nullptr;
  if (job.settings.restart) why = "has restart=true";
  if (job.settings.sum_block != 0) why = "has sum=fixed";
  if (job.settings.daemon_cores.size() > 1) why = "uses several daemons";
  if (why == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("job {} {}, and such jobs cannot have groups; group {}", job.name(), why, group));
}

// Groups of one name share no rank, so a rank and a name identify a group.
std::shared_ptr<Group> GroupKeys::FindByRanks(const Job& job, const v1::GroupSpec& spec) {
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (group->name != spec.name()) continue;
    const auto is_member = [&](std::uint32_t each) { return group->members->HasInJob(Rank{each}); };
    if (std::ranges::any_of(spec.ranks(), is_member)) return group;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<Group>> GroupKeys::FindGroup(Job& job, Rank rank,
                                                            const v1::GroupSpec& spec) {
  const std::shared_ptr<Group> group = FindByRanks(job, spec);
  if (group == nullptr || std::ranges::equal(group->ranks, spec.ranks())) return group;
  return Disagree(job, rank, DescribeDisagreement(job, *group, rank, DescribeRanks(spec.ranks())));
}

void GroupKeys::AddKeys(Request request, Answer<v1::AddKeysResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request->session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  const v1::GroupSpec& spec = request->group();
  absl::Status status = CheckSpec(job, seat->rank, spec);
  if (status.ok()) status = CheckDeclared(job, seat->rank, *request);
  if (status.ok()) status = CheckJob(job, spec.name());
  if (!status.ok()) return answer(Refuse(status), {});
  absl::StatusOr<std::shared_ptr<Group>> found = FindGroup(job, seat->rank, spec);
  if (!found.ok()) return answer(found.status(), {});
  const Adding adding{request, answer};
  if (*found != nullptr) {
    if (status = CheckCall(job, seat->rank, **found, adding); !status.ok())
      return answer(status, {});
    if ((*found)->Has(request->batch())) return Compare(job, *found, adding);
  } else if (request->batch() != 0) {
    return answer(
        Refuse(InvalidGroup(fmt::format("{} added batch {} of keys to group {} of job {}, "
                                        "which has none",
                                        DescribeRankBriefly(job, seat->rank), request->batch(),
                                        spec.name(), job.name()))),
        {});
  }
  if (job.rack_run != nullptr && IsOfSeveralRacks(job, spec))
    return Ask(job, seat->rank, *found, adding);
  if (job.key_build != nullptr)
    return Keys::AfterBuild(job, [this, request, answer] { AddKeys(request, answer); });
  Build(job, seat->rank, *found, adding);
}

absl::Status GroupKeys::CheckCall(Job& job, Rank rank, const Group& group, const Adding& adding) {
  const std::uint32_t member = group.members->IndexOf(rank);
  if (adding.request->batch() > group.next_batch[member])
    return Refuse(InvalidGroup(
        fmt::format("{} added batch {} of keys to {} of job {}, but its next batch is {}",
                    DescribeRankBriefly(job, rank), adding.request->batch(), Describe(group),
                    job.name(), group.next_batch[member])));
  if (group.removal == nullptr) return absl::OkStatus();
  return Disagree(job, rank,
                  fmt::format("{} removes {}, and {} adds keys to it",
                              DescribeRankBriefly(job, group.removal->first), Describe(group),
                              DescribeRankBriefly(job, rank)));
}

void GroupKeys::Build(Job& job, Rank rank, const std::shared_ptr<Group>& found,
                      const Adding& adding) {
  std::shared_ptr<Group> group = found;
  if (group == nullptr) {
    std::vector<Rank> ranks;
    group = std::make_shared<Group>();
    for (const std::uint32_t each : adding.request->group().ranks()) {
      group->ranks.push_back(each);
      ranks.push_back(InRack(job, each));
    }
    group->name = adding.request->group().name();
    group->first = rank;
    group->members = std::make_shared<const Members>(ranks, InJob(group->ranks));
    group->next_batch.assign(ranks.size(), 0);
  }
  const std::shared_ptr<KeyBuild> build = StartKeyBuild(job, rank, host_memory_);
  BuildForGroup(job, *build, group);
  build->given = std::shared_ptr<const KeySpecs>(adding.request, &adding.request->keys());
  keys_.StartBuild(job, build, [this, group, adding](const absl::Status& status) {
    if (!status.ok()) return adding.answer(status, {});
    Share(group, adding);
  });
}

void GroupKeys::Enter(Job& job, KeyBuild& build) {
  Group& group = *build.group;
  job.group_key_numbers = std::move(build.group_key_numbers);
  group.batches.push_back(std::make_shared<BatchRecord>(std::move(build.record)));
  if (group.id != 0) return;
  group.id = ++job.groups_made;
  job.groups.push_back(build.group);
}

void GroupKeys::Compare(Job& job, const std::shared_ptr<Group>& group, const Adding& adding) {
  const auto difference = std::make_shared<KeyDifference>();
  const std::shared_ptr<const BatchRecord> record = group->batches[adding.request->batch()];
  context_.turns.RunLong(
      static_cast<std::size_t>(adding.request->keys_size()), job.account.tenant,
      [difference, keys = record->keys, request = adding.request] {
        *difference = CompareKeys(*keys, FillInDefaults(request->keys()));
      },
      [this, difference, group, record, adding] {
        const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.request->session_id());
        if (!seat.ok()) return adding.answer(seat.status(), {});
        if (!difference->found) return Share(group, adding);
        adding.answer(
            Disagree(*seat->job, seat->rank,
                     fmt::format("{} and {} disagree on the keys they added to {}: {}",
                                 DescribeRankBriefly(*seat->job, record->first),
                                 DescribeRankBriefly(*seat->job, seat->rank), Describe(*group),
                                 Describe(*difference, *seat->job, *record, adding.request->batch(),
                                          seat->rank))),
            {});
      });
}

// The member has the same keys as its group: shares memory with it, and answers once the core loops
// have the keys.
void GroupKeys::Share(const std::shared_ptr<Group>& group, const Adding& adding) {
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.request->session_id());
  if (!seat.ok()) return adding.answer(seat.status(), {});
  Job& job = *seat->job;
  const std::uint32_t batch = adding.request->batch();
  absl::Status shared = rank_memories_.ShareGroupBatch(job, seat->rank, *group, batch,
                                                       adding.request->shared_region(),
                                                       adding.request->shared_bytes());
  if (!shared.ok()) return adding.answer(shared, {});
  PagesFlag pages;
  for (const auto& [region, each] : job.members[seat->rank.value].memory.group_batches)
    if (each.group == group->id && each.batch == batch) pages = each.memory.worker_pages;
  std::uint32_t& next = group->next_batch[group->members->IndexOf(seat->rank)];
  if (batch == next) ++next;
  const std::shared_ptr<BatchRecord> record = group->batches[batch];
  job.pending.push_back(
      {.tickets = {},
       .succeed = [this, group, record, adding] { AnswerAdded(*group, *record, adding); },
       .fail = [answer = adding.answer](const absl::Status& status) { answer(status, {}); },
       .pages = std::move(pages),
       .of_group = record,
       .in_racks = group->exchange == nullptr ? nullptr : group,
       .group_batches = batch + 1});
  pending_calls_.AnswerAcknowledged(job);
}

void GroupKeys::AnswerAdded(const Group& group, const BatchRecord& record, const Adding& adding) {
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.request->session_id());
  if (!seat.ok()) return adding.answer(seat.status(), {});
  v1::AddKeysResponse response = *record.placements;
  response.set_group_id(group.id);
  rank_memories_.GrantGroupBatch(seat->job->members[seat->rank.value], group.id,
                                 adding.request->batch(), response);
  adding.answer(absl::OkStatus(), std::move(response));
}

}  // namespace phub::server
