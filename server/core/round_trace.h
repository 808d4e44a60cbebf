// A trace of a job's rounds in one core loop: what the loop did with each chunk, and when. Control
// creates it when an administrator asks, and reads it while the core loop writes. If control reads
// too late, new spans are dropped and counted; the loop never waits.
//
// From kTraceRounds until the acknowledgement of the next kTraceRounds, or until kJobEnded, the
// core loop may write. Nothing allocates after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/spsc_queue.h"
#include "common/wire/message.h"
#include "server/core/pooled_part.h"

namespace phub::server {

struct TracedSpan {
  // The values are those of v1::TracedWork.
  enum class Work : std::uint8_t { kNone, kGather, kSum, kUpdate, kReply };
  TimeNs begin = 0;
  TimeNs end = 0;
  std::uint64_t round = 0;      // the version that it makes
  std::uint64_t iteration = 0;  // reductions of the chunk before this round
  KeyIndex key{};
  ChunkIndex chunk{};
  std::uint16_t rank = 0;  // kGather: the rank that pushed last, numbered over the whole job
  Work work = Work::kNone;
  wire::RoundOperation operation{};
  bool skipped = false;
  PooledPart pool{};  // what the whole round is; only if the operation is that of a pooled key
};
static_assert(kRanksMax <= UINT16_MAX);

struct RoundTrace {
  explicit RoundTrace(std::size_t spans_max) : spans(spans_max) {}

  // Core loop's thread.
  void Add(const TracedSpan& span) {
    if (!spans.TryPush(span)) dropped.fetch_add(1, std::memory_order_relaxed);
  }

  SpscQueue<TracedSpan> spans;  // core loop -> control
  std::atomic<std::uint64_t> dropped{0};
};

}  // namespace phub::server
