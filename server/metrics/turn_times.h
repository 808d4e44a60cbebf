// How long control's lock was held per turn, by the kind of caller. Written and read under the
// lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "server/metrics/shard_metrics.h"

namespace phub::server {

enum class TurnKind : std::uint8_t {
  kPoll,        // control's own thread
  kCall,        // a unary call
  kStream,      // a message of a stream, or its end
  kLane,        // a lane that is opened or closed
  kMetrics,     // a scrape
  kBackground,  // the result of long work of another thread
  kOther,
};
inline constexpr std::array<const char*, 7> kTurnKindNames = {
    "poll", "call", "stream", "lane", "metrics", "background", "other"};

struct TurnTimes {
  // The buckets of kRoundDurationBounds.
  std::array<std::uint64_t, kRoundDurationBuckets> buckets{};
  std::uint64_t total_ns = 0;

  void Add(DurationNs held) {
    ++buckets[RoundDurationBucket(held)];
    total_ns += static_cast<std::uint64_t>(held);
  }
};
using AllTurnTimes = std::array<TurnTimes, kTurnKindNames.size()>;  // [TurnKind]

}  // namespace phub::server
