// What the policies of rounds use: the stages that a whole round passes, scratch memory, and two
// functions for all policies.
//
// A policy makes a chunk's next version from a whole round. It is a namespace with a function
// Finish (and more functions if its kind of job needs them), in a file of its own:
//
//   policy           how it makes the next version                               file
//   kPlain           sum and update in one pass over the staged gradients        plain.h
//   kFixedSums       the same, with sums in fixed point (sum=fixed)              fixed_sums.h
//   kWholeIteration  sum now; update when all workers have decided               whole_iteration.h
//   kAcrossRacks     sum now; add the peer racks' sums; update at the home       across_racks.h
//
// Rounds increments chunk.applied and sends the replies, for all policies.
// Owned by Rounds; loop's thread. Nothing allocates.
#pragma once

#include <cstdint>
#include <span>

#include "server/core/aggregate/aggregate.h"
#include "server/core/exchange/exchange.h"
#include "server/core/loop/context.h"
#include "server/core/loop/outbox.h"
#include "server/core/loop/turns.h"
#include "server/core/reply/reply.h"
#include "server/core/round_trace.h"

namespace phub::server {

// The result of a policy's function.
enum class Made : std::uint8_t {
  kNothing,  // the round waits for workers or racks, or the job has failed
  kVersion,  // chunk.NextParameters() has the next version
  kSkipped,  // the iteration was skipped: the next version is equal to the current one
};

// The span of a trace (server/core/round_trace.h) for the chunk's present round, without its work
// and times.
TracedSpan SpanOf(const Chunk& chunk);

struct RoundStages {
  // Makes the next version from the terms of all `ranks` ranks of the job. own_replies and streams:
  // see optimize.h. kNothing: the result is not finite, and the job rejects such results.
  Made Optimize(JobShard& shard, Chunk& chunk, const simd::Terms& terms, std::uint32_t ranks,
                std::span<std::byte* const> own_replies, bool streams);
  // Screens the round. `non_finite`: its result is not finite.
  Made Screen(JobShard& shard, Chunk& chunk, bool non_finite);
  // Reports a sum that was noted. kNothing: the job rejects it.
  Made Report(JobShard& shard);
  // Returns a staging slot to its worker. Reports a fault if the worker ignores credits.
  void Credit(JobShard& shard, const aggregate::FreedSlot& slot);

  // Counts a round whose last gradient came from `last` at that time, and adds the wait for it to
  // the shard's trace if there is one.
  void CountRound(JobShard& shard, Rank last, const Chunk& chunk, TimeNs gathered_at);

  LoopContext& loop;
  Outbox& outbox;
  Turns& turns;
  reply::ReplyStage& replies;
  exchange::ExchangeStage& exchanges;
  aggregate::TermList terms{};    // scratch: 8 KiB, too large for the stack
  aggregate::FreedSlots freed{};  // scratch
};

}  // namespace phub::server
