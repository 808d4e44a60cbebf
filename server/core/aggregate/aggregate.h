// Second stage: gradients wait in staging slots until their round is whole, or are folded.
//
// Staging. A lane has W slots. When every rank's gradient for a chunk has arrived the round is
// whole, and the next stage sums the slots in one pass, in rank order.
//
// Folding. Ranks may push in different orders, so a lane's slots can all be held by chunks that
// cannot complete until that lane moves on: deadlock. So whenever a lane is full, the ready prefix
// of ranks of every chunk that this lane holds (ranks folded_count, folded_count+1, ... as far as
// they are staged) is summed into the chunk's accumulator, in whichever lanes its slots lie, and
// those slots are credited. The sum is the same left fold over ranks, cut at another place, so
// the bits do not depend on whether or when it happened.
//
// Gradients that lie in memory which worker and daemon share are staged where they lie: they hold
// no slot, need no credit, and are folded along when a prefix is.
//
//   Invariant, after every run: if a lane is full, it holds a whole round that waits for its turn,
//   and which frees a slot then, or no chunk that it holds has a ready prefix. Why that is live:
//   whatever rank 0 stages is a ready prefix, so rank 0 is never stuck; once all of rank 0 is in,
//   the same holds for rank 1; and so on. tests/sim/exhaustive_test.cc searches every push order of
//   small cases.
//
// Who is told: freed slots are appended to `freed`; the core loop credits them. Core loop's
// thread; nothing allocates.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "server/core/job_shard.h"

namespace phub::server::aggregate {

struct FreedSlot {
  Rank rank{};
  ChunkIndex chunk{};
  SlotIndex slot{};
};

// A bounded list: one fold frees at most one slot per rank.
struct FreedSlots {
  std::array<FreedSlot, kRanksMax> items;
  std::size_t count = 0;
  std::span<const FreedSlot> all() const { return {items.data(), count}; }
};

// Puts a gradient into its round: what landed in header.slot of rank's lane, or lies at
// message.payload.
void Stage(JobShard& shard, Rank rank, Chunk& chunk, const transport::ReceivedMessage& message,
           TimeNs now);

// No free slot is left in the rank's lane / in some lane that holds a slot of the chunk.
bool LaneFull(const JobShard& shard, Rank rank);
bool HeldByFullLane(const JobShard& shard, const Chunk& chunk);

// Folds the ready prefix of one chunk, if any; `freed` holds the slots that it freed. A sum that is
// not finite is noted (screening.h).
void Fold(JobShard& shard, Chunk& chunk, FreedSlots& freed);

// Restores the invariant after `rank` staged `chunk` without completing its round: folds every
// chunk of the rank's lane if that lane is full now, and `chunk` if a full lane holds it (which may
// be another: what is staged in place is in none of its own lane's slots). Calls credit(FreedSlot)
// for each slot.
template <typename Credit>
void RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk, FreedSlots& scratch,
                      Credit&& credit) {
  const auto fold = [&](Chunk& folded) {
    Fold(shard, folded, scratch);
    for (const FreedSlot& slot : scratch.all()) credit(slot);
  };
  if (LaneFull(shard, rank)) {
    for (const ChunkIndex held : shard.lanes[rank.value].slot_chunk) {
      if (held != ChunkIndex::Max()) fold(*shard.chunks()[held.value]);
    }
  }
  if (HeldByFullLane(shard, chunk)) fold(chunk);
}

// A slot of the lane holds a whole round, which is finished and not folded.
bool HoldsWholeRound(const JobShard& shard, Rank rank);

// Restores the invariant after a lane was lost: what it had staged is gone, so rounds that were
// whole and waited for their turn wait for its rank again, and lanes that they filled must be
// relieved.
template <typename Credit>
void RelieveAfterLoss(JobShard& shard, FreedSlots& scratch, Credit&& credit) {
  for (std::uint32_t rank = 0; rank < shard.config.world_size && shard.lanes_full > 0; ++rank) {
    if (!LaneFull(shard, Rank{rank}) || HoldsWholeRound(shard, Rank{rank})) continue;
    for (const ChunkIndex held : shard.lanes[rank].slot_chunk) {
      if (held == ChunkIndex::Max()) continue;
      Fold(shard, *shard.chunks()[held.value], scratch);
      for (const FreedSlot& slot : scratch.all()) credit(slot);
    }
  }
}

// Jobs that span racks, or have apply_iteration: every rank has arrived, and what they pushed moves
// to the accumulator; `freed` holds the slots that were freed. False if there is nothing to be
// moved: of kLoad, and of kAssign, when the root is in another rack.
bool FoldAll(JobShard& shard, Chunk& chunk, FreedSlots& freed);

// The terms of a whole round in rank order: the accumulator, if ranks were folded, then what is
// staged. For kAssign the one input is the root's payload; for kLoad there is none. Valid until
// Finish; the list lies in `scratch`.
using TermList = std::array<const std::byte*, kRanksMax>;
simd::Terms GatherTerms(const JobShard& shard, const Chunk& chunk, TermList& scratch);

// Empties the round: slots are free (the reply tells the workers so), nothing is folded.
void Finish(JobShard& shard, Chunk& chunk);

// A lane was lost: what it had staged and not folded is discarded. How many gradients.
std::size_t DiscardStaged(JobShard& shard, Rank rank);

}  // namespace phub::server::aggregate
