// A core loop's counters of one job, and of its groups, in addition to its own counters
// (counters.h). Written only by the loop, read by control as long as the shard exists. Nothing here
// allocates, locks or reads the clock: times are those at which a run of the loop began, so they
// are exact to one run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/metrics/counters.h"

namespace phub::server {

// Upper bounds of the buckets of a round's duration; one more bucket holds longer durations. The
// range is from a round over shared memory to a stall that needs an operator.
inline constexpr auto kRoundDurationBounds = std::to_array<DurationNs>(
    {25 * kMicrosecond, 50 * kMicrosecond, 100 * kMicrosecond, 250 * kMicrosecond,
     500 * kMicrosecond, kMillisecond, 2500 * kMicrosecond, 5 * kMillisecond, 10 * kMillisecond,
     25 * kMillisecond, 50 * kMillisecond, 100 * kMillisecond, 250 * kMillisecond,
     500 * kMillisecond, kSecond, 2500 * kMillisecond, 5 * kSecond, 10 * kSecond});
inline constexpr std::size_t kRoundDurationBuckets = kRoundDurationBounds.size() + 1;

// The bucket that a duration falls into.
inline std::size_t RoundDurationBucket(DurationNs duration) {
  std::size_t bucket = 0;
  while (bucket < kRoundDurationBounds.size() && duration > kRoundDurationBounds[bucket]) ++bucket;
  return bucket;
}

// How much rounds waited for a rank. A round is for one chunk, so many rounds wait at the same
// time: straggler_wait_ns divided by rounds_last is how late the rank is; the sum is not wall-clock
// time.
struct RankMetrics {
  SingleWriterNumber rounds_last;        // rounds for which this rank was the last to push
  SingleWriterNumber straggler_wait_ns;  // time that those rounds waited only for this rank
};

// How far a job's rounds are, by the largest number of reductions that a chunk has completed.
struct RoundProgress {
  static constexpr std::uint64_t kSmoothing = 8;  // iterations that iteration_ns is a mean of

  // Gauges. The largest number of reductions; when it was completed first, 0: not yet; the time
  // from one to the next, smoothed; and how many such times were measured.
  SingleWriterNumber iteration;
  SingleWriterNumber iteration_at;
  SingleWriterNumber iteration_ns;
  SingleWriterNumber iterations_timed;

  void NoteIteration(std::uint64_t reductions, TimeNs now) {
    if (reductions <= iteration.Get()) return;
    if (iteration_at.Get() != 0) {
      const std::uint64_t took = static_cast<std::uint64_t>(now) - iteration_at.Get();
      const std::uint64_t mean = iteration_ns.Get();
      iteration_ns.Set(mean == 0 ? took : mean - mean / kSmoothing + took / kSmoothing);
      iterations_timed.Add();
    }
    iteration.Set(reductions);
    iteration_at.Set(static_cast<std::uint64_t>(now));
  }
  // A checkpoint was loaded: the job is at another iteration.
  void ResetIteration(std::uint64_t reductions) {
    iteration.Set(reductions);
    iteration_at.Set(0);
  }
};

// What a job or one of its groups moves, and how long its rounds take.
struct WorkMetrics {
  SingleWriterNumber gradients;
  SingleWriterNumber gradient_bytes;
  SingleWriterNumber reply_bytes;
  SingleWriterNumber straggler_wait_ns;  // time that rounds waited only for their last rank
  SingleWriterNumber round_duration_ns;  // sum over rounds, each from first gradient to last
  std::array<SingleWriterNumber, kRoundDurationBuckets> round_duration_buckets;

  void CountGradient(std::uint64_t bytes) {
    gradients.Add();
    gradient_bytes.Add(bytes);
  }
  void CountReplies(std::uint64_t bytes) { reply_bytes.Add(bytes); }
  void CountRound(DurationNs duration) {
    round_duration_ns.Add(static_cast<std::uint64_t>(duration));
    round_duration_buckets[RoundDurationBucket(duration)].Add();
  }
  void CountWait(DurationNs waited) { straggler_wait_ns.Add(static_cast<std::uint64_t>(waited)); }
};

// The progress of the job's iterations, and other figures.
struct ShardMetrics : RoundProgress, WorkMetrics {
  SingleWriterNumber nonfinite_sums;       // see aggregate/screening.h
  SingleWriterNumber nonfinite_gradients;  // gradients that made those sums not finite
  SingleWriterNumber slots_used;           // gauge, over all lanes
  RoundProgress collectives;               // of collective keys, which are outside iterations
  std::unique_ptr<RankMetrics[]> ranks;    // [rank]

  void CountLast(Rank rank, DurationNs waited) {
    CountWait(waited);
    ranks[rank.value].rounds_last.Add();
    ranks[rank.value].straggler_wait_ns.Add(static_cast<std::uint64_t>(waited));
  }
};

}  // namespace phub::server
