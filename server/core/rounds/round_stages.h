// What the policies of rounds work with: the stages that a whole round goes through, scratch
// memory, and the two things that every policy does alike.
//
// A policy makes a chunk's next version out of a whole round. It is a namespace with a function
// Finish (and what else its kind of job needs), in a file of its own:
//
//   policy           how the next version comes to be                            file
//   kPlain           sum and update in one pass over what is staged              plain.h
//   kWholeIteration  sum now; update when all workers have decided about all     whole_iteration.h
//   kAcrossRacks     sum now; add the peer racks' sums; update at the home        across_racks.h
//
// Nothing here moves chunk.applied on or answers anybody: Rounds does, for all policies.
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

namespace phub::server {

// What has become of a round for now.
enum class Made : std::uint8_t {
  kNothing,  // it waits for somebody, or the job has failed
  kVersion,  // chunk.NextParameters() holds the next version
  kSkipped,  // the same, and it is the version before: the iteration was skipped
};

struct RoundStages {
  // Makes the next version from the terms of all ranks of the job, `ranks` of them. own_replies and
  // streams: as in optimize.h. kNothing: the result is not finite, and the job rejects that.
  Made Optimize(JobShard& shard, Chunk& chunk, const simd::Terms& terms, std::uint32_t ranks,
                std::span<std::byte* const> own_replies, bool streams);
  // Gives a staging slot back to its worker. A fault if the worker has used it again without its
  // credit.
  void Credit(JobShard& shard, const aggregate::FreedSlot& slot);

  LoopContext& loop;
  Outbox& outbox;
  Turns& turns;
  reply::ReplyStage& replies;
  exchange::ExchangeStage& exchanges;
  aggregate::TermList terms{};    // scratch: 8 KiB that need not be on the stack
  aggregate::FreedSlots freed{};  // scratch
};

}  // namespace phub::server
