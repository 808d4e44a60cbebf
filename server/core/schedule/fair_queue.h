// Decides which whole round a core loop finishes next when several jobs share it: deficit round
// robin over tenants by their weights, and over the jobs of each tenant equally. Rounds are
// scheduled, because summing, updating and replying are most of the work. Receiving gradients is
// not scheduled, but it is charged.
//
// If a tenant is far over its share while others wait (MustHold), the loop does not read its lanes.
// So a burst over many lanes does not get more than its share of the core either.
//
// Turns are measured in nanoseconds. A round is charged its measured duration. A received gradient
// is charged kMessageNs + its bytes * kNsPerKibibyte / 1024, because reading the clock for each
// would cost too much. Both are charged to the same account, which may go negative (a debt); its
// owner then waits until its quanta have paid the debt. Debts are bounded, and they are cancelled
// when the core loop was idle. The unused rest of a turn is lost.
//
//   A tenant that starts to wait is queued behind the tenants that wait already. So it waits at
//   most for one quantum of each, and for one round that has begun (rounds are not interrupted). A
//   tenant that waits alone gets the whole core, and its deficit does not matter.
//
// A delayed round delays its replies, and so the slots that the worker needs to send more: credits
// stop a flood. Bandwidth limits work the same way: if a tenant's token bucket is empty, the tenant
// is throttled, which means that its rounds are not finished and its credits and replies are not
// sent. Nothing is dropped. Its debt is at most one iteration of its jobs, because workers can push
// more than that ahead only by repeating messages.
//
// Core loop's thread; nothing allocates.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "common/base/clock.h"
#include "server/core/job_shard.h"

namespace phub::server::schedule {

// A turn at weight 100: several rounds of a typical job, and short compared to an iteration.
inline constexpr DurationNs kQuantumNs = 50 * kMicrosecond;
// The largest debt at weight 100. It limits how long a tenant pays for time that it used while no
// other tenant waited.
inline constexpr DurationNs kDebtNsMax = 64 * kQuantumNs;
// The lanes of a tenant with a larger debt than this, at weight 100, are not read while others
// wait.
inline constexpr DurationNs kHoldNs = 4 * kQuantumNs;
// The cost of receiving one message, and of each KiB of it: about the cost of a memory copy.
inline constexpr DurationNs kMessageNs = 250;
inline constexpr DurationNs kNsPerKibibyte = 64;

inline DurationNs TimeToTakeIn(std::uint64_t bytes) {
  return kMessageNs + static_cast<DurationNs>(bytes / 1024) * kNsPerKibibyte;
}

class FairQueue {
 public:
  FairQueue();

  // Call before the job's first round. Applies the tenant's share from the job's config.
  void AddJob(JobShard& shard, TimeNs now);
  // Drops the job's queued rounds.
  void RemoveJob(JobShard& shard);
  // Adds the keys' bytes to the size of the job's iteration.
  static void AddKeys(JobShard& shard, const KeyBatch& batch);
  // Subtracts those of a chunk. REQUIRES: it has no queued round.
  static void RemoveChunk(JobShard& shard, const Chunk& chunk);
  // Sets the share of the job's tenant, which all its jobs have.
  void SetShare(JobShard& shard, const TenantShare& share, TimeNs now);

  // False: the loop has at most one job and no bandwidth limit, so rounds may be finished at once
  // and nothing must be charged.
  bool Shares() const { return job_count_ > 1 || limited_count_ > 0; }
  // Queues a whole round.
  void Push(JobShard& shard, Chunk& chunk);
  // Charges a received message, or a pulled reply of that size. True if that used up the tenant's
  // bandwidth.
  bool TakeIn(JobShard& shard, std::uint64_t bytes, TimeNs now);
  void Charge(JobShard& shard, DurationNs cost);

  struct Round {
    JobShard* shard = nullptr;  // null: no round may be finished now
    Chunk* chunk = nullptr;
  };
  Round Next();
  // Whether not to read the job's lanes, because its tenant has a large debt while others wait. The
  // tenant then takes turns to pay its debt, even if it has no rounds.
  bool MustHold(JobShard& shard);
  bool HasRounds() const { return !tenants_.empty(); }

  // Unthrottles the tenants whose token buckets are not empty any more.
  void Refill(TimeNs now);
  // When Refill has something to do; the maximum if never.
  TimeNs next_refill() const { return next_refill_; }
  // The core loop was idle: cancels all debts, because no tenant had to wait.
  void OnIdle() { ++epoch_; }
  // Checks F1 and F2 of docs/internals/invariants.md. `shards`: all shards of the core loop.
  void CheckInvariants(std::span<JobShard* const> shards) const;

 private:
  static constexpr std::size_t kRows = 2048;  // tenants; more than jobs, so that a row is free

  TenantTurn& RowOf(std::uint32_t tenant);
  void Freshen(Turn& turn) const;
  void Enter(Ring& ring, Turn& turn);
  static void Leave(Ring& ring, Turn& turn);
  static Turn& Pick(Ring& ring);
  void Pay(Turn& turn, DurationNs cost) const;
  void Forget(JobTurn& job);

  std::unique_ptr<std::array<TenantTurn, kRows>> rows_;
  Ring tenants_;                     // tenants that take turns: not throttled
  TenantTurn* throttled_ = nullptr;  // head of the list of throttled tenants
  std::uint64_t epoch_ = 1;
  std::size_t job_count_ = 0;
  std::size_t limited_count_ = 0;  // tenants that have jobs and a bandwidth limit
  TimeNs next_refill_ = std::numeric_limits<TimeNs>::max();
};

}  // namespace phub::server::schedule
