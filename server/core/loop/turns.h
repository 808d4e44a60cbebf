// Schedules a core loop's work: which job's round it finishes next, and which jobs' lanes it reads.
// Connects schedule/fair_queue.h, which decides the order, to the loop's counters, clock and
// transports.
//
// If the loop has only one job and no bandwidth limit, this costs nothing: rounds are finished at
// once and nothing is charged.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/core/loop/context.h"
#include "server/core/loop/lanes.h"
#include "server/core/schedule/fair_queue.h"

namespace phub::server {

class Turns {
 public:
  Turns(LoopContext& loop, LoopLanes& lanes) : loop_(loop), lanes_(lanes) {}

  void AddJob(JobShard& shard);
  void AddKeys(JobShard& shard, const KeyBatch& batch);
  void RemoveChunk(JobShard& shard, const Chunk& chunk);
  void SetShare(JobShard& shard, const TenantShare& share);
  void RemoveJob(JobShard& shard);

  // Charges a message with that payload before it is validated: a repeated message costs as much as
  // a new one.
  void ChargeIngress(JobShard& shard, std::uint64_t bytes) {
    if (!queue_.Shares() || !queue_.TakeIn(shard, bytes, loop_.now)) return;
    loop_.counters.Add(CoreCounter::throttles);
  }
  // Charges work outside of a round that moved that many bytes.
  void ChargeWork(JobShard& shard, std::uint64_t bytes) {
    if (queue_.Shares()) queue_.Charge(shard, schedule::TimeToTakeIn(bytes));
  }
  // Runs `work` and charges the job its duration and a message with that payload.
  template <typename Work>
  void Charged(JobShard& shard, std::uint64_t bytes, Work&& work) {
    if (!queue_.Shares()) return work();
    const TimeNs before = loop_.clock.Now();
    work();
    queue_.Charge(shard, loop_.clock.Now() - before + schedule::TimeToTakeIn(bytes));
  }

  // Call when a round is whole. True: it was queued and waits for its turn; false: finish it now.
  [[nodiscard]] bool PutOff(JobShard& shard, Chunk& chunk);
  // Queues a round that must not be finished within this call.
  void Queue(JobShard& shard, Chunk& chunk) { queue_.Push(shard, chunk); }
  // Calls finish(JobShard&, Chunk&) for rounds whose turn it is, for a bounded time. True if there
  // were any; there may be more.
  template <typename Finish>
  bool FinishDue(Finish&& finish) {
    queue_.Refill(loop_.now);
    if (!queue_.HasRounds()) return false;
    const TimeNs begin = loop_.clock.Now();
    TimeNs before = begin;
    while (before - begin < kFinishTimeMax) {
      const schedule::FairQueue::Round round = queue_.Next();
      if (round.shard == nullptr) break;
      finish(*round.shard, *round.chunk);
      const TimeNs after = loop_.clock.Now();
      queue_.Charge(*round.shard, after - before);
      before = after;
    }
    return true;
  }

  // Stops reading the lanes of jobs whose tenant is far over its share while others wait, and
  // resumes the others. False if there was nothing to do: the loop is not shared, and no lane is
  // held.
  bool UpdateHolds();
  void OnIdle() { queue_.OnIdle(); }
  // Checks F1 to F3 of docs/internals/invariants.md.
  void CheckInvariants() const;
  TimeNs next_refill() const { return queue_.next_refill(); }

 private:
  // Queued rounds are finished for this time; then the transports are polled again, because a
  // tenant that is more entitled to the core may have new rounds.
  static constexpr DurationNs kFinishTimeMax = 100 * kMicrosecond;

  LoopContext& loop_;
  LoopLanes& lanes_;
  schedule::FairQueue queue_;
  std::size_t held_count_ = 0;  // jobs whose lanes are not read for now
};

}  // namespace phub::server
