// What a core loop counts of one job, beside its own counters (counters.h): written by the loop
// alone, read by control for as long as the shard lives. Nothing here allocates, locks or asks for
// the time: times are those at which a run of the loop began, so they are exact to one run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/metrics/counters.h"

namespace phub::server {

// Upper bounds of the buckets of a round's duration; one more bucket holds what is longer. From
// what a round over shared memory takes to what somebody should have been called for.
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

// A rank as the one that rounds waited for. A round is one chunk's, so many wait at once: the sum
// divided by the rounds is how late the rank is; by itself it is no time on a clock.
struct RankMetrics {
  SingleWriterNumber rounds_last;        // rounds that this rank completed, as the last one
  SingleWriterNumber straggler_wait_ns;  // that those rounds had been waiting for it alone
};

struct ShardMetrics {
  SingleWriterNumber gradients;
  SingleWriterNumber gradient_bytes;
  SingleWriterNumber reply_bytes;
  SingleWriterNumber nonfinite_sums;       // see aggregate/screening.h
  SingleWriterNumber nonfinite_gradients;  // that made them so
  SingleWriterNumber slots_used;           // of all lanes, now
  SingleWriterNumber round_duration_ns;  // of all rounds, from a round's first gradient to its last
  std::array<SingleWriterNumber, kRoundDurationBuckets> round_duration_buckets;
  std::unique_ptr<RankMetrics[]> ranks;  // [rank]

  void CountGradient(std::uint64_t bytes) {
    gradients.Add();
    gradient_bytes.Add(bytes);
  }
  void CountRound(DurationNs duration) {
    round_duration_ns.Add(static_cast<std::uint64_t>(duration));
    round_duration_buckets[RoundDurationBucket(duration)].Add();
  }
  void CountLast(Rank rank, DurationNs waited) {
    ranks[rank.value].rounds_last.Add();
    ranks[rank.value].straggler_wait_ns.Add(static_cast<std::uint64_t>(waited));
  }
};

}  // namespace phub::server
