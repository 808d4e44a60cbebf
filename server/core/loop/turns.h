// Whose round a core loop finishes next, and whose lanes it reads. The order itself is
// schedule/fair_queue.h's; here it meets the loop's counters, its time and its transports.
//
// While one job is alone on the loop and nothing limits it, all this costs nothing: rounds are
// finished at once and nothing is charged.
//
// Owned by CoreLoop::State; loop's thread. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/core/loop/context.h"
#include "server/core/loop/lanes.h"
#include "server/core/schedule/fair_queue.h"

namespace phub::server {

class Turns {
 public:
  Turns(LoopContext& loop, Lanes& lanes) : loop_(loop), lanes_(lanes) {}

  void AddJob(JobShard& shard);
  void AddKeys(JobShard& shard, const KeyBatch& batch);
  void SetShare(JobShard& shard, const TenantShare& share);
  void RemoveJob(JobShard& shard);

  // Charges a message with that payload, whatever it turns out to be: a repeated one costs as much
  // as a new one.
  void ChargeIngress(JobShard& shard, std::uint64_t bytes) {
    if (!queue_.Shares() || !queue_.TakeIn(shard, bytes, loop_.now)) return;
    loop_.counters.Add(CoreCounter::throttles);
  }
  // Charges work that moved that many bytes, outside of a round.
  void ChargeWork(JobShard& shard, std::uint64_t bytes) {
    if (queue_.Shares()) queue_.Charge(shard, schedule::TimeToTakeIn(bytes));
  }
  // Runs `work` on the job's account, by the clock and for a message with that payload.
  template <typename Work>
  void Charged(JobShard& shard, std::uint64_t bytes, Work&& work) {
    if (!queue_.Shares()) return work();
    const TimeNs before = loop_.clock.Now();
    work();
    queue_.Charge(shard, loop_.clock.Now() - before + schedule::TimeToTakeIn(bytes));
  }

  // A round is whole. True: it waits for its turn; false: it is to be finished now.
  [[nodiscard]] bool PutOff(JobShard& shard, Chunk& chunk);
  // A round that must not be finished within this call; it takes turns with other jobs' work.
  void Queue(JobShard& shard, Chunk& chunk) { queue_.Push(shard, chunk); }
  // Calls finish(JobShard&, Chunk&) for rounds whose turn it is, for a bounded time. True if it
  // had any; then there may be more.
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

  // Holds the lanes of jobs whose tenant owes much while others wait, and releases the others.
  // False if nobody shares the loop and nothing is held: then there was nothing to do.
  bool UpdateHolds();
  void OnIdle() { queue_.OnIdle(); }
  // F1 to F3 of docs/internals/invariants.md.
  void CheckInvariants() const;
  TimeNs next_refill() const { return queue_.next_refill(); }

 private:
  // Rounds that waited for their turn are finished for so long; then transports are polled again,
  // so that a tenant with more right to the core is noticed.
  static constexpr DurationNs kFinishTimeMax = 100 * kMicrosecond;

  LoopContext& loop_;
  Lanes& lanes_;
  schedule::FairQueue queue_;
  std::size_t held_count_ = 0;  // jobs whose lanes are not read for now
};

}  // namespace phub::server
