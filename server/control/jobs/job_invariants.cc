#include "server/control/jobs/job_invariants.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::server {
namespace {

// M4, M5: the connections of a lane, the older ones, and their staging.
void CheckPlace(const Job& job, Rank rank, const LanePlace& place) {
  PHUB_CHECK(place.replaced.empty() || job.settings.on_loss == LossPolicy::kWait,
             "M4 job={} rank={}", job.name(), rank.value);
  const std::size_t connections = place.replaced.size() + (place.connection != nullptr ? 1 : 0);
  PHUB_CHECK(place.staging_in_use.size() == connections, "M5 job={} rank={} staging={} lanes={}",
             job.name(), rank.value, place.staging_in_use.size(), connections);
}

void CheckMember(const Job& job, Rank rank, std::size_t core_count) {
  const Member& member = job.members[rank.value];
  using State = Member::State;
  const bool is_free = member.state == State::kAwaited;
  const bool has_process = member.state == State::kLive || member.state == State::kReserved;
  PHUB_CHECK(member.session_id.empty() ? !has_process : !is_free, "M1 job={} rank={} state={}",
             job.name(), rank.value, ToString(member.state));
  PHUB_CHECK(!is_free || (!member.committed && member.sink == nullptr && member.barriers.empty()),
             "M1 job={} rank={}", job.name(), rank.value);
  PHUB_CHECK(!member.present() || member.committed, "M2 job={} rank={}", job.name(), rank.value);
  PHUB_CHECK(member.state != State::kLost ||
                 (job.settings.on_loss == LossPolicy::kWait && !member.absence.empty()),
             "M3 job={} rank={}", job.name(), rank.value);
  PHUB_CHECK(member.lanes.size() == (job.released() ? 0 : core_count), "M4 job={} rank={} lanes={}",
             job.name(), rank.value, member.lanes.size());
  for (const LanePlace& place : member.lanes) CheckPlace(job, rank, place);
  if (!job.running()) return;
  PHUB_CHECK(member.next_batch <= job.batches.size(), "M6 job={} rank={} batch={} batches={}",
             job.name(), rank.value, member.next_batch, job.batches.size());
  for (const auto& [number, pending] : member.barriers) {
    PHUB_CHECK(number >= job.barriers_done, "M7 job={} rank={} barrier={} done={}", job.name(),
               rank.value, number, job.barriers_done);
  }
}

// J6, J7: keys and batches.
void CheckKeys(const Job& job, std::size_t core_count) {
  // A build or a removal has the names for itself, and may leave some if the job ends meanwhile.
  const bool has_names = job.running() && job.key_build == nullptr && job.removal == nullptr;
  PHUB_CHECK(
      job.keys.size() == job.key_count && (!has_names || job.key_names->size() == job.key_count),
      "J6 job={} keys={} names={} count={}", job.name(), job.keys.size(),
      has_names ? job.key_names->size() : 0, job.key_count);
  std::size_t batch_keys = 0;
  for (std::size_t i = 0; i < job.batches.size(); ++i) {
    const BatchRecord& batch = job.batches[i];
    PHUB_CHECK(batch.first_key == batch_keys, "J6 job={} batch={}", job.name(), i);
    batch_keys += batch.keys->size();
    const bool handed_out = i < job.batches_handed_out;
    PHUB_CHECK(batch.tickets.size() == (handed_out ? core_count : 0), "J7 job={} batch={}",
               job.name(), i);
  }
  PHUB_CHECK(batch_keys == job.key_count, "J6 job={} keys={} in_batches={}", job.name(),
             job.key_count, batch_keys);
  PHUB_CHECK(job.batches_handed_out <= job.batches.size(), "J7 job={}", job.name());
}

}  // namespace

void CheckJob(const Job& job, const Ledger& ledger, std::size_t core_count) {
  PHUB_CHECK(!job.end_commands_sent || !job.running(), "J3 job={}", job.name());
  PHUB_CHECK(job.cores_ended <= (job.end_commands_sent ? core_count : 0), "J3 job={} ended={}",
             job.name(), job.cores_ended);
  PHUB_CHECK(job.shards.size() == (job.cores_ended == core_count ? 0 : core_count),
             "J4 job={} shards={} ended={}", job.name(), job.shards.size(), job.cores_ended);
  PHUB_CHECK(ledger.used_bytes(job.account) == job.memory_bytes, "J5 job={} ledger={} job={}",
             job.name(), ledger.used_bytes(job.account), job.memory_bytes);
  if (!job.released()) CheckKeys(job, core_count);
  PHUB_CHECK(job.running() || !job.diagnosis, "J8 job={}", job.name());
  PHUB_CHECK(job.fault.code().empty() == (job.state != Job::State::kFailed), "J8 job={} state={}",
             job.name(), ToString(job.state));
  PHUB_CHECK((job.rack_run == nullptr) == (job.exchange == nullptr), "J9 job={}", job.name());
  PHUB_CHECK(job.members.size() == job.settings.world_size, "J9 job={} members={}", job.name(),
             job.members.size());
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank)
    CheckMember(job, Rank{rank}, core_count);
  const bool present = std::ranges::any_of(job.members, &Member::present);
  PHUB_CHECK(!present || job.nobody_since == 0, "J10 job={}", job.name());
}

}  // namespace phub::server
