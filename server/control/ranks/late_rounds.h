// Rounds that take much longer than usual. The ranks that have pushed are notified which ranks the
// round waits for: when it has waited kTimesUsual times as long as an iteration usually takes
// (kLateAtLeast at least), and then every kNoticeInterval. The usual time is known after
// kIterationsMin iterations, so a job that has just started gets no notice. A round that waits for
// ranks of other racks is passed to a listener.
//
// Every daemon of the rack does this for its own core loops, and the workers log one of the
// notices. Owned by Control; under control's lock.
#pragma once

#include <cstdint>

#include "server/control/context.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/stall_queries.h"

namespace phub::server {

// Whether the round waits for this rank, counted from 0 in this rack, and the rank is live. A rank
// that has not joined, or is lost, is reported in other ways (arrivals.h, presence.h).
bool IsLate(const Job& job, const StallReport::Entry& round, std::uint32_t rank);

class LateRounds {
 public:
  static constexpr int kRanksNamed = 16;  // in a v1::RoundLate
  static constexpr std::uint64_t kIterationsMin = 5;
  static constexpr int kTimesUsual = 10;
  static constexpr DurationNs kLateAtLeast = 2 * kSecond;
  static constexpr DurationNs kNoticeInterval = 30 * kSecond;
  // Between two looks at a job that makes no progress although no round waits for a rank, such as
  // during an evaluation.
  static constexpr DurationNs kIdleInterval = 5 * kSecond;

  LateRounds(Context& context, StallQueries& stall_queries, LateRoundListener& across)
      : context_(context), stall_queries_(stall_queries), across_(across) {}

  void Check(Job& job, TimeNs now);
  // When Check() has something to do; kNever while the usual time is not known.
  TimeNs NextTimer(const Job& job) const;

 private:
  void Examine(Job& job, const StallQuery& query, DurationNs usual);
  void Notify(const Job& job, const StallReport::Entry& round, DurationNs usual) const;

  Context& context_;
  StallQueries& stall_queries_;
  LateRoundListener& across_;
};

}  // namespace phub::server
