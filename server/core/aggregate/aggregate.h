// Second stage: gradients wait in staging slots until their round is whole, or until they are
// folded.
//
// Staging. A lane has W slots. A round is whole when every rank's gradient for the chunk has
// arrived. The next stage then sums the slots in one pass, in rank order.
//
// Folding prevents a deadlock. Ranks may push in different orders, so the chunks that hold all
// slots of a lane may be unable to complete before that lane makes progress. Whenever a lane is
// full, the ready prefix of every chunk that the lane holds is folded into the chunk's accumulator,
// and the slots of that prefix are credited, in every lane. The ready prefix is ranks folded_count,
// folded_count+1, ... as far as they are staged. Folding computes the same left fold over ranks in
// more steps, so the bits do not depend on whether or when it happens.
//
// With sum=fixed, the scale of a sum depends on all ranks. So folding copies the prefix's gradients
// to memory of the chunk (Chunk::copies), and the sum is computed once all have arrived.
//
// A round with a root has one payload. Whenever a lane is full, the chunks of such rounds that it
// holds give up all their slots, and the payload is put aside in the accumulator.
//
// A gradient in memory that worker and daemon share is staged in place: it holds no slot and needs
// no credit. It is folded together with its prefix.
//
//   Invariant, after every run: if a lane is full (lane_room.h), either it holds whole rounds that
//   wait for their turn and then free enough slots, or no chunk that it holds, and that it is full
//   for, has a ready prefix or a root.
//   Why no lane gets stuck: every gradient of rank 0 is a ready prefix, so rank 0 always makes
//   progress. Once all gradients of rank 0 have arrived, the same holds for rank 1, and so on.
//   tests/sim/exhaustive_test.cc searches every push order of small cases.
//
// Freed slots are appended to `freed`, and the core loop credits them. Core loop's thread; nothing
// allocates.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "server/core/aggregate/lane_room.h"
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

// Adds a gradient to its round. It is in header.slot of the rank's lane, or at message.payload in
// shared memory.
void Stage(JobShard& shard, Rank rank, Chunk& chunk, const transport::ReceivedMessage& message,
           TimeNs now);

// Folds the ready prefix of one chunk, if any, or puts aside what its round moves. `freed` returns
// the slots that are free now. Notes a sum that is not finite (screening.h).
void Fold(JobShard& shard, Chunk& chunk, FreedSlots& freed);

// Restores the invariant after `rank` staged `chunk` without completing its round. Folds every
// chunk of the rank's lane if that lane is full, and `chunk` if any full lane holds it. That may be
// another rank's lane, because a gradient that is staged in place holds no slot. Calls
// credit(FreedSlot) for each slot.
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

// Restores the invariant after a lane was lost, or after keys of a higher class were added. The
// staged gradients of a lost lane are discarded, so rounds that were whole and waited for their
// turn wait for its rank again, and lanes that are full of such rounds must be relieved.
template <typename Credit>
void RelieveLanes(JobShard& shard, FreedSlots& scratch, Credit&& credit) {
  for (std::uint32_t rank = 0; rank < shard.config.world_size && shard.lanes_full > 0; ++rank) {
    if (!LaneFull(shard, Rank{rank}) || FreesItself(shard, Rank{rank})) continue;
    for (const ChunkIndex held : shard.lanes[rank].slot_chunk) {
      if (held == ChunkIndex::Max()) continue;
      Fold(shard, *shard.chunks()[held.value], scratch);
      for (const FreedSlot& slot : scratch.all()) credit(slot);
    }
  }
}

// For jobs that span racks or have apply_iteration, when every rank has arrived: folds all
// gradients into the accumulator. `freed` returns the slots that are free now. False if there is no
// payload: for kLoad, and for kAssign and kMove if the root is in another rack.
bool FoldAll(JobShard& shard, Chunk& chunk, FreedSlots& freed);

// The terms of a whole round in rank order: the accumulator, if ranks were folded, then the staged
// gradients. For kAssign and kMove the only input is the root's payload; kLoad has none. The
// result refers to `scratch` and is valid until Finish.
using TermList = std::array<const std::byte*, kRanksMax>;
simd::Terms GatherTerms(const JobShard& shard, const Chunk& chunk, TermList& scratch);

// The gradients of a whole round in rank order, for sums in fixed point. The result refers to
// `scratch` and is valid until Finish. REQUIRES: kReduce, chunk.key->sum_block is not 0.
std::span<const std::byte* const> GatherGradients(const Chunk& chunk, TermList& scratch);

// Resets the round: its slots are free, which the reply tells the workers, and nothing is folded.
void Finish(JobShard& shard, Chunk& chunk);

// A lane was lost: discards its gradients that are staged and not folded. Returns their number.
std::size_t DiscardStaged(JobShard& shard, Rank rank);

}  // namespace phub::server::aggregate
