#include "server/core/schedule/fair_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/core/on_core_loop.h"

namespace phub::server::schedule {
namespace {

std::int64_t Scaled(DurationNs duration, std::uint32_t weight) {
  return std::max<std::int64_t>(1, duration * weight / kWeightDefault);
}

// What the chunk adds to the size of an iteration.
std::uint64_t IterationBytes(const Chunk& chunk) {
  const ShardKey& key = *chunk.key;
  return std::uint64_t{std::max(
             {chunk.Bytes(key.type), chunk.Bytes(key.gradient_type), chunk.reply_bytes()})} *
         chunk.member_count;
}

}  // namespace

FairQueue::FairQueue() : rows_(std::make_unique<std::array<TenantTurn, kRows>>()) {}

// The tenant's row, which keeps its debt; otherwise an unused row, or one whose tenant has no jobs.
TenantTurn& FairQueue::RowOf(std::uint32_t tenant) {
  TenantTurn* vacant = nullptr;
  for (TenantTurn& row : *rows_) {
    if (row.used && row.tenant == tenant) return row;
    if (row.jobs == 0 && (vacant == nullptr || vacant->used)) vacant = &row;
  }
  PHUB_CHECK(vacant != nullptr, "tenant={}", tenant);
  *vacant = {};
  vacant->used = true;
  vacant->tenant = tenant;
  return *vacant;
}

void FairQueue::AddJob(JobShard& shard, TimeNs now) {
  PHUB_ON_CORE_LOOP();
  JobTurn& job = shard.turn;
  PHUB_CHECK(job.tenant == nullptr);
  job.shard = &shard;
  job.tenant = &RowOf(shard.config.tenant);
  if (job.tenant->jobs++ == 0 && job.tenant->bucket.limited()) ++limited_count_;
  ++job_count_;
  SetShare(shard, shard.config.share, now);
}

void FairQueue::AddKeys(JobShard& shard, const KeyBatch& batch) {
  JobTurn& job = shard.turn;
  if (job.tenant == nullptr) return;  // the core loop has already removed the job
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : batch.chunks) bytes += IterationBytes(chunk);
  job.iteration_bytes += bytes;
  job.tenant->iteration_bytes += bytes;
}

void FairQueue::RemoveChunk(JobShard& shard, const Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  JobTurn& job = shard.turn;
  PHUB_CHECK(!chunk.is_queued, "chunk={}", chunk.index.value);
  if (job.tenant == nullptr) return;  // the core loop has already removed the job
  const std::uint64_t bytes = IterationBytes(chunk);
  job.iteration_bytes -= bytes;
  job.tenant->iteration_bytes -= bytes;
}

void FairQueue::SetShare(JobShard& shard, const TenantShare& share, TimeNs now) {
  if (shard.turn.tenant == nullptr) return;  // the core loop has already removed the job
  TenantTurn& tenant = *shard.turn.tenant;
  tenant.weight = std::clamp<std::uint32_t>(share.weight, 1, kWeightMax);
  const bool was_limited = tenant.bucket.limited();
  tenant.bucket.SetRate(share.bandwidth_bytes, now);
  limited_count_ += tenant.bucket.limited() ? 1 : 0;
  limited_count_ -= was_limited ? 1 : 0;
  next_refill_ = now;  // the end of throttling may have changed
  Refill(now);
}

void FairQueue::RemoveJob(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  JobTurn& job = shard.turn;
  PHUB_CHECK(job.tenant != nullptr);
  Forget(job);
  TenantTurn& tenant = *std::exchange(job.tenant, nullptr);
  tenant.iteration_bytes -= std::exchange(job.iteration_bytes, 0);
  --job_count_;
  if (--tenant.jobs > 0) return;
  if (tenant.bucket.limited()) --limited_count_;
  if (!tenant.throttled) return;
  tenant.throttled = false;
  TenantTurn** at = &throttled_;
  while (*at != &tenant) at = &(*at)->next_throttled;
  *at = std::exchange(tenant.next_throttled, nullptr);
}

void FairQueue::Freshen(Turn& turn) const {
  if (turn.epoch == epoch_) return;
  turn.epoch = epoch_;
  turn.deficit_ns = 0;
}

void FairQueue::Enter(Ring& ring, Turn& turn) {
  if (turn.waits()) return;
  Freshen(turn);
  turn.deficit_ns = std::min<std::int64_t>(turn.deficit_ns, 0) + Scaled(kQuantumNs, turn.weight);
  ring.Append(turn);
}

void FairQueue::Leave(Ring& ring, Turn& turn) {
  if (turn.waits()) ring.Remove(turn);
}

void FairQueue::Push(JobShard& shard, Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  if (chunk.is_queued) return;  // it was queued before a lane was lost, and is whole again
  JobTurn& job = shard.turn;
  chunk.is_queued = true;
  chunk.next_queued = nullptr;
  (job.last == nullptr ? job.first : job.last->next_queued) = &chunk;
  job.last = &chunk;
  Enter(job.tenant->waiting, job);
  if (!job.tenant->throttled) Enter(tenants_, *job.tenant);
}

void FairQueue::Pay(Turn& turn, DurationNs cost) const {
  Freshen(turn);
  turn.deficit_ns =
      std::max<std::int64_t>(turn.deficit_ns - cost, -Scaled(kDebtNsMax, turn.weight));
}

void FairQueue::Charge(JobShard& shard, DurationNs cost) {
  Pay(shard.turn, cost);
  Pay(*shard.turn.tenant, cost);
}

bool FairQueue::TakeIn(JobShard& shard, std::uint64_t bytes, TimeNs now) {
  PHUB_ON_CORE_LOOP();
  Charge(shard, TimeToTakeIn(bytes));
  TenantTurn& tenant = *shard.turn.tenant;
  if (!tenant.bucket.limited()) return false;
  tenant.bucket.Refill(now);
  tenant.bucket.Take(bytes, tenant.iteration_bytes);
  if (tenant.throttled || !tenant.bucket.empty()) return false;
  tenant.throttled = true;
  tenant.next_throttled = std::exchange(throttled_, &tenant);
  Leave(tenants_, tenant);
  next_refill_ = std::min(next_refill_, tenant.bucket.FilledAt());
  return true;
}

// The first turn without debt. A turn with debt that is passed over gets its quantum.
Turn& FairQueue::Pick(Ring& ring) {
  while (!ring.alone() && ring.front().deficit_ns <= 0) {
    ring.front().deficit_ns += Scaled(kQuantumNs, ring.front().weight);
    ring.Rotate();
  }
  return ring.front();
}

bool FairQueue::MustHold(JobShard& shard) {
  TenantTurn& tenant = *shard.turn.tenant;
  if (tenants_.empty() || (tenants_.alone() && tenant.waits())) return false;
  Freshen(tenant);
  if (tenant.throttled || tenant.deficit_ns >= -Scaled(kHoldNs, tenant.weight)) return false;
  Enter(tenants_, tenant);
  return true;
}

FairQueue::Round FairQueue::Next() {
  PHUB_ON_CORE_LOOP();
  while (!tenants_.empty()) {
    auto& tenant = static_cast<TenantTurn&>(Pick(tenants_));
    if (tenant.waiting.empty()) {  // it took turns only to pay its debt
      Leave(tenants_, tenant);
      continue;
    }
    auto& job = static_cast<JobTurn&>(Pick(tenant.waiting));
    Chunk& chunk = *job.first;
    JobShard& shard = *job.shard;
    chunk.is_queued = false;
    job.first = std::exchange(chunk.next_queued, nullptr);
    if (job.first == nullptr || !shard.live()) Forget(job);
    if (shard.live() && chunk.IsWhole()) return {&shard, &chunk};
  }
  return {};
}

// Removes the job's queued rounds.
void FairQueue::Forget(JobTurn& job) {
  while (job.first != nullptr) {
    job.first->is_queued = false;
    job.first = std::exchange(job.first->next_queued, nullptr);
  }
  job.last = nullptr;
  Leave(job.tenant->waiting, job);
  if (job.tenant->waiting.empty()) Leave(tenants_, *job.tenant);
}

void FairQueue::Refill(TimeNs now) {
  if (now < next_refill_) return;
  next_refill_ = std::numeric_limits<TimeNs>::max();
  for (TenantTurn** at = &throttled_; *at != nullptr;) {
    TenantTurn& tenant = **at;
    tenant.bucket.Refill(now);
    if (tenant.bucket.empty()) {
      next_refill_ = std::min(next_refill_, tenant.bucket.FilledAt());
      at = &tenant.next_throttled;
      continue;
    }
    *at = std::exchange(tenant.next_throttled, nullptr);
    tenant.throttled = false;
    if (!tenant.waiting.empty()) Enter(tenants_, tenant);
  }
}

void FairQueue::CheckInvariants(std::span<JobShard* const> shards) const {
  PHUB_CHECK(job_count_ == shards.size(), "F1 jobs={} shards={}", job_count_, shards.size());
  std::size_t limited = 0;
  for (const JobShard* const shard : shards) {
    const TenantTurn* const tenant = shard->turn.tenant;
    PHUB_CHECK(tenant != nullptr && shard->turn.shard == shard, "F1 tenant={}",
               shard->config.tenant);
    std::uint32_t jobs = 0;
    std::uint64_t bytes = 0;
    const JobShard* first = nullptr;
    for (const JobShard* const other : shards) {
      if (other->turn.tenant != tenant) continue;
      if (first == nullptr) first = other;
      ++jobs;
      bytes += other->turn.iteration_bytes;
    }
    PHUB_CHECK(jobs == tenant->jobs && bytes == tenant->iteration_bytes,
               "F1 tenant={} jobs={} counted={}", tenant->tenant, jobs, tenant->jobs);
    limited += first == shard && tenant->bucket.limited();
    // F2: a tenant that has whole rounds takes turns, unless it is throttled.
    PHUB_CHECK(!(tenant->throttled && tenant->waits()), "F2 tenant={}", tenant->tenant);
    PHUB_CHECK(tenant->waiting.empty() || tenant->throttled || tenant->waits(), "F2 tenant={}",
               tenant->tenant);
  }
  PHUB_CHECK(limited == limited_count_, "F1 limited={} counted={}", limited, limited_count_);
}

}  // namespace phub::server::schedule
