// Which whole round a core loop finishes next, when several jobs want it: deficit round robin over
// tenants by their weights, and over the jobs of each tenant alike. Summing, updating and replying
// is what a round costs, so rounds are what is scheduled; taking gradients in cannot be put off,
// and is charged.
//
// Taking in is put off only where somebody owes much already (MustHold): then his lanes are not
// read while others wait, so that a burst over many lanes takes no more of the core than its share
// either.
//
// What a turn is measured in: nanoseconds. A round is charged what it took by the clock. A gradient
// that came in is charged kMessageNs + its bytes * kNsPerKibibyte / 1024: reading the clock for
// each would cost more than it tells. Both are paid from the same account, which may be overdrawn;
// whoever owes waits until his turns have paid for it. Debts are bounded, and forgiven when the
// core loop had nothing to do. What somebody does not use of his turn is lost, not saved.
//
//   A tenant that begins to wait is behind those that wait already. So it waits for one quantum of
//   each at most, and one round that was begun (rounds are not interrupted).
//   With one tenant waiting, nobody counts: it is served as fast as the core can.
//
// Holding back rounds holds back replies, and with them the slots that the worker needs to send
// more: a flood ends at the credits. So does a bandwidth: a tenant whose bucket is empty is
// throttled, which means that its rounds stay unfinished and its credits and replies unsent.
// Nothing is dropped. It owes one iteration of its jobs at most: nobody pushes more than that ahead
// but by repeating itself.
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

// A turn at weight 100: several rounds of a usual job, and short beside an iteration.
inline constexpr DurationNs kQuantumNs = 50 * kMicrosecond;
// Nobody owes more than this, at weight 100: what somebody took while nobody else was waiting is
// held against him for so long.
inline constexpr DurationNs kDebtNsMax = 64 * kQuantumNs;
// Whoever owes more than this, while others wait, is not even read.
inline constexpr DurationNs kHoldNs = 4 * kQuantumNs;
// Of taking in one message, and 1 KiB of it: about what a memory copy takes.
inline constexpr DurationNs kMessageNs = 250;
inline constexpr DurationNs kNsPerKibibyte = 64;

inline DurationNs TimeToTakeIn(std::uint64_t bytes) {
  return kMessageNs + static_cast<DurationNs>(bytes / 1024) * kNsPerKibibyte;
}

class FairQueue {
 public:
  FairQueue();

  // The job's rounds may come from now on. What its config says of the tenant is so from now on.
  void AddJob(JobShard& shard, TimeNs now);
  // Its rounds are forgotten.
  void RemoveJob(JobShard& shard);
  // The job has these, too.
  static void AddKeys(JobShard& shard, const KeyBatch& batch);
  // For the tenant of the job, and so for all its jobs.
  void SetShare(JobShard& shard, const TenantShare& share, TimeNs now);

  // False: nobody else is there and nothing is limited, so that rounds may be finished at once, and
  // nothing need be charged.
  bool Shares() const { return job_count_ > 1 || limited_count_ > 0; }
  // A whole round waits.
  void Push(JobShard& shard, Chunk& chunk);
  // A message came in, or as much is to be sent unasked. True if that used up the tenant's
  // bandwidth.
  bool TakeIn(JobShard& shard, std::uint64_t bytes, TimeNs now);
  void Charge(JobShard& shard, DurationNs cost);

  struct Round {
    JobShard* shard = nullptr;  // null: there is none that may be finished now
    Chunk* chunk = nullptr;
  };
  Round Next();
  // Whether the job's lanes are not to be read: its tenant owes much, and others wait. It then pays
  // as if it waited, too.
  bool MustHold(JobShard& shard);
  bool HasRounds() const { return !tenants_.empty(); }

  // Tenants whose bandwidth allows it are throttled no more.
  void Refill(TimeNs now);
  // When Refill has something to do; the end of time if never.
  TimeNs next_refill() const { return next_refill_; }
  // The core loop had nothing to do: nobody was kept waiting.
  void OnIdle() { ++epoch_; }
  // F1, F2 of docs/internals/invariants.md. `shards`: all that the core loop has.
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
  Ring tenants_;                     // with whole rounds, and not throttled
  TenantTurn* throttled_ = nullptr;  // the first of them
  std::uint64_t epoch_ = 1;
  std::size_t job_count_ = 0;
  std::size_t limited_count_ = 0;  // tenants with a bandwidth and jobs
  TimeNs next_refill_ = std::numeric_limits<TimeNs>::max();
};

}  // namespace phub::server::schedule
