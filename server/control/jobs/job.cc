#include "server/control/jobs/job.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace phub::server {

const char* ToString(Member::State state) {
  switch (state) {
    case Member::State::kAwaited: return "awaited";
    case Member::State::kReserved: return "reserved";
    case Member::State::kLive: return "live";
    case Member::State::kLost: return "lost";
    case Member::State::kLeft: return "left";
    case Member::State::kDead: return "dead";
  }
  return "unknown";
}

const char* ToString(Job::State state) {
  switch (state) {
    case Job::State::kRunning: return "running";
    case Job::State::kFailed: return "failed";
    case Job::State::kEnded: return "ended";
  }
  return "unknown";
}

const RoundProgress* ProgressOf(const Job& job) {
  const RoundProgress* furthest = nullptr;
  for (const auto& shard : job.shards) {
    const ShardMetrics& metrics = shard->metrics;
    const bool only_collective = job.keys.saved_count() == 0 && !job.keys.empty();
    const RoundProgress& progress = only_collective ? metrics.collectives : metrics;
    if (furthest == nullptr || progress.iteration.Get() >= furthest->iteration.Get()) {
      furthest = &progress;
    }
  }
  return furthest;
}

void NoteHeard(Member& member, TimeNs now) {
  member.last_heard = now;
  member.forgiven = 0;
  member.silent = false;
}

DurationNs PatienceWith(const Member& member, DurationNs liveness_timeout) {
  constexpr DurationNs kOpening = 5;  // in liveness timeouts; delays of 3.4 s were seen with 2 s
  return member.opens_lanes ? kOpening * liveness_timeout : liveness_timeout;
}

std::string DescribeRank(const Job& job, Rank rank) {
  if (rank.value >= job.members.size() || job.members[rank.value].host.empty()) {
    return fmt::format("rank {}", rank.value + job.config.rank_base);
  }
  const Member& member = job.members[rank.value];
  return fmt::format("rank {} ({}, pid {})", rank.value + job.config.rank_base, member.host,
                     member.pid);
}

std::string DescribeRankBriefly(const Job& job, Rank rank) {
  if (rank.value >= job.members.size() || job.members[rank.value].host.empty()) {
    return fmt::format("rank {}", rank.value + job.config.rank_base);
  }
  return fmt::format("rank {} ({})", rank.value + job.config.rank_base,
                     job.members[rank.value].host);
}

namespace {

struct GroupPlace {
  const Group* group = nullptr;  // null: no group has the key
  const BatchRecord* batch = nullptr;
};

GroupPlace FindInGroups(const Job& job, KeyIndex key) {
  for (const std::shared_ptr<Group>& group : job.groups) {
    for (const std::shared_ptr<BatchRecord>& batch : group->batches) {
      const std::uint32_t first = batch->first_key;
      if (batch->keys != nullptr && key.value >= first && key.value - first < batch->keys->size())
        return {group.get(), batch.get()};
    }
  }
  return {};
}

}  // namespace

const BatchRecord* FindBatchOf(const Job& job, KeyIndex key) {
  if (key.value >= job.keys.size()) return FindInGroups(job, key).batch;
  const auto after =
      std::ranges::upper_bound(job.batches, key.value, std::less{}, &BatchRecord::first_key);
  return &*std::prev(after);
}

absl::Status CheckNoGroups(const Job& job) {
  if (job.groups_made == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "job {} has or had groups, and checkpoints of such jobs are not supported", job.name()));
}

const Members* MembersOf(const Job& job, KeyIndex key) {
  if (key.value < job.keys.size()) return nullptr;
  const Group* const group = FindInGroups(job, key).group;
  return group != nullptr ? group->members.get() : nullptr;
}

bool HasKey(const Job& job, KeyIndex key) {
  return key.value < job.keys.size() || FindInGroups(job, key).batch != nullptr;
}

std::string DescribeKey(const Job& job, KeyIndex key) {
  if (key.value < job.keys.size()) return job.keys[key.value].name();
  const BatchRecord* const batch = FindInGroups(job, key).batch;
  return batch != nullptr ? (*batch->keys)[key.value - batch->first_key].name()
                          : fmt::format("number {}", key.value);
}

}  // namespace phub::server
