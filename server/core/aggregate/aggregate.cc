#include "server/core/aggregate/aggregate.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/simd/kernels.h"
#include "server/core/aggregate/screening.h"
#include "server/core/kernels_in_parts.h"
#include "server/core/on_core_loop.h"

namespace phub::server::aggregate {
namespace {

using wire::RoundOperation;

// Marks a gradient without payload as staged; the memory is not read.
const std::byte* NoPayload(const Chunk& chunk) { return chunk.accumulator; }

void Occupy(JobShard& shard, Rank rank, Chunk& chunk, SlotIndex slot, const std::byte* data) {
  Lane& lane = shard.lanes[rank.value];
  const std::uint32_t member = chunk.IndexOf(rank);
  chunk.staged_data[member] = data;
  chunk.staged_slot[member] = slot;
  ++chunk.staged_count;
  if (slot == kNoSlot) {
    ++lane.staged_in_place;
    return;
  }
  TakeSlot(shard, rank, chunk, slot);
}

// Returns the slot that the member's staged gradient is in.
SlotIndex FreeSlot(JobShard& shard, std::uint32_t member, Chunk& chunk) {
  const SlotIndex slot = chunk.staged_slot[member];
  chunk.staged_slot[member] = kNoSlot;
  ReturnSlot(shard, chunk.RankOf(member), chunk, slot);
  return slot;
}

void Vacate(JobShard& shard, std::uint32_t member, Chunk& chunk) {
  chunk.staged_data[member] = nullptr;
  --chunk.staged_count;
  if (chunk.staged_slot[member] != kNoSlot)
    FreeSlot(shard, member, chunk);
  else
    --shard.lanes[chunk.RankOf(member).value].staged_in_place;
}

// The accumulator, if members were folded, then the staged members [chunk.folded_count, end).
simd::Terms TermsUpTo(const Chunk& chunk, std::uint32_t end, TermList& scratch) {
  std::size_t count = 0;
  for (std::uint32_t member = chunk.folded_count; member < end; ++member) {
    scratch[count++] = chunk.staged_data[member];
  }
  return {chunk.folded_count > 0 ? chunk.accumulator : nullptr, {scratch.data(), count}};
}

// The root of a round that has one, as a member in this rack; member_count or more if it is in
// another rack.
std::uint32_t RootHere(const JobShard& shard, const Chunk& chunk) {
  const std::uint32_t base = shard.config.rank_base;
  return chunk.root.value < base ? kNoMember : chunk.IndexOf(Rank{chunk.root.value - base});
}

// Copies what the root sent to the accumulator, unless it is there. REQUIRES: it is staged.
void KeepPayloadOf(const JobShard& shard, std::uint32_t root, const Chunk& chunk) {
  if (chunk.staged_data[root] == chunk.accumulator) return;
  const std::size_t bytes = chunk.elements() * numeric::ElementBytes(chunk.payload_type);
  std::memcpy(chunk.accumulator, chunk.staged_data[root], bytes);
  shard.CountMemory(MemoryWork::kCopies, {.read = bytes, .written = bytes});
}

// Frees the slots of a round with a root, before it is whole. Only one member has a payload, so it
// need not wait for those below it.
void PutAside(JobShard& shard, Chunk& chunk, FreedSlots& freed) {
  const std::uint32_t root = RootHere(shard, chunk);
  for (std::uint32_t member = chunk.folded_count; member < chunk.member_count; ++member) {
    if (chunk.staged_slot[member] == kNoSlot) continue;
    if (member == root) KeepPayloadOf(shard, root, chunk);
    const Rank rank = chunk.RankOf(member);
    freed.items[freed.count++] = {rank, chunk.index, FreeSlot(shard, member, chunk)};
    chunk.staged_data[member] = chunk.accumulator;
    ++shard.lanes[rank.value].staged_in_place;
  }
}

// Adds members [chunk.folded_count, end) to the accumulator. True if this is a reduction and its
// result is not finite.
bool AddToAccumulator(const JobShard& shard, Chunk& chunk, std::uint32_t end) {
  if (chunk.operation == RoundOperation::kLoad) return false;
  if (wire::HasRoot(chunk.operation)) {
    const std::uint32_t root = RootHere(shard, chunk);
    if (root >= chunk.folded_count && root < end) KeepPayloadOf(shard, root, chunk);
    return false;
  }
  TermList scratch;
  const simd::Terms terms = TermsUpTo(chunk, end, scratch);
  if (shard.memory != nullptr) {
    const std::uint64_t sum = chunk.Bytes(numeric::AccumulationType(chunk.gradient_type()));
    shard.CountMemory(MemoryWork::kSums, {.read = terms.inputs.size() * chunk.GradientBytes() +
                                                  (terms.folded != nullptr ? sum : 0),
                                          .written = sum});
  }
  return FoldInParts(shard.long_work, chunk.gradient_type(), chunk.reduction(), terms,
                     chunk.elements(), chunk.accumulator, chunk.Encoded());
}

// The gradients of members [0, end): copies and those that are staged.
std::span<const std::byte* const> GradientsUpTo(const Chunk& chunk, std::uint32_t end,
                                                TermList& scratch) {
  for (std::uint32_t member = 0; member < end; ++member) {
    scratch[member] =
        member < chunk.folded_count ? chunk.CopyOf(member) : chunk.staged_data[member];
  }
  return {scratch.data(), end};
}

// Copies members [chunk.folded_count, end), or sums all members if these are the last. True if
// there is a sum, and it is not finite.
bool CopyOrSum(const JobShard& shard, Chunk& chunk, std::uint32_t end) {
  const ShardKey& key = *chunk.key;
  if (end == chunk.member_count) {
    TermList scratch;
    return SumFixedInParts(shard.long_work, key.gradient_type, key.sum_block,
                           GradientsUpTo(chunk, end, scratch), chunk.element_count,
                           chunk.accumulator);
  }
  for (std::uint32_t member = chunk.folded_count; member < end; ++member) {
    std::memcpy(chunk.CopyOf(member), chunk.staged_data[member], chunk.Bytes(key.gradient_type));
  }
  return false;
}

// Moves members [chunk.folded_count, prefix_end) to the accumulator. REQUIRES: all are staged.
void FoldUpTo(JobShard& shard, Chunk& chunk, std::uint32_t prefix_end, FreedSlots& freed) {
  const bool in_fixed_point =
      chunk.key->sum_block != 0 && chunk.operation == RoundOperation::kReduce;
  // For min and max, the result of a prefix may be infinite although the final result is finite, so
  // each fold overwrites the flag.
  chunk.sum_non_finite = in_fixed_point ? CopyOrSum(shard, chunk, prefix_end)
                                        : AddToAccumulator(shard, chunk, prefix_end);
  if (chunk.sum_non_finite) NoteNonFinite(shard, chunk, prefix_end);
  for (std::uint32_t member = chunk.folded_count; member < prefix_end; ++member) {
    const SlotIndex slot = chunk.staged_slot[member];
    if (slot != kNoSlot) freed.items[freed.count++] = {chunk.RankOf(member), chunk.index, slot};
    Vacate(shard, member, chunk);
  }
  chunk.folded_count = prefix_end;
}

}  // namespace

void Stage(JobShard& shard, Rank rank, Chunk& chunk, const transport::ReceivedMessage& message,
           TimeNs now) {
  PHUB_ON_CORE_LOOP();
  const wire::MessageHeader& header = message.header;
  PHUB_CHECK(!chunk.HasArrived(rank), "rank={} chunk={}", rank.value, chunk.index.value);
  if (chunk.arrived_count() == 0) {
    chunk.first_rank = rank;
    chunk.hyper_version = header.hyper_version;
    chunk.operation = header.operation;
    chunk.payload_type = header.type;
    chunk.root = header.root;
    chunk.round_since = now;
    chunk.skip_asked = false;
    if (chunk.is_pooled()) {
      chunk.hyper_version = HyperVersion{1};
      chunk.pool = {.operation = header.operation,
                    .root = header.root,
                    .type = header.type,
                    .elements = chunk.PoolBytes(header) / numeric::ElementBytes(header.type),
                    .round = header.pool};
    }
  }
  chunk.skip_asked |= (header.flags & wire::kFlagSkip) != 0;
  const std::byte* const data = message.payload != nullptr ? message.payload : NoPayload(chunk);
  Occupy(shard, rank, chunk, header.slot, data);
}

void Fold(JobShard& shard, Chunk& chunk, FreedSlots& freed) {
  PHUB_ON_CORE_LOOP();
  freed.count = 0;
  if (wire::HasRoot(chunk.operation) && !chunk.IsWhole()) return PutAside(shard, chunk, freed);
  std::uint32_t prefix_end = chunk.folded_count;
  while (prefix_end < chunk.member_count && chunk.staged_data[prefix_end] != nullptr) {
    ++prefix_end;
  }
  // A whole round is finished instead of folded; it may be waiting for its turn.
  if (prefix_end == chunk.folded_count || prefix_end == chunk.member_count) return;
  FoldUpTo(shard, chunk, prefix_end, freed);
}

bool FoldAll(JobShard& shard, Chunk& chunk, FreedSlots& freed) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(chunk.IsWhole(), "chunk={}", chunk.index.value);
  freed.count = 0;
  if (chunk.folded_count < chunk.member_count) FoldUpTo(shard, chunk, chunk.member_count, freed);
  if (chunk.operation == RoundOperation::kLoad) return false;
  return !wire::HasRoot(chunk.operation) || RootHere(shard, chunk) < chunk.member_count;
}

simd::Terms GatherTerms(const JobShard& shard, const Chunk& chunk, TermList& scratch) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(chunk.IsWhole(), "chunk={} arrived={}", chunk.index.value, chunk.arrived_count());
  switch (chunk.operation) {
    case RoundOperation::kReduce:
    case RoundOperation::kPool: return TermsUpTo(chunk, chunk.member_count, scratch);
    case RoundOperation::kLoad: return {};
    case RoundOperation::kAssign:
    case RoundOperation::kMove:
    case RoundOperation::kPoolMove: break;
  }
  const std::uint32_t root = RootHere(shard, chunk);
  scratch[0] = root < chunk.folded_count ? chunk.accumulator : chunk.staged_data[root];
  return {nullptr, {scratch.data(), 1}};
}

std::span<const std::byte* const> GatherGradients(const Chunk& chunk, TermList& scratch) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(chunk.IsWhole(), "chunk={} arrived={}", chunk.index.value, chunk.arrived_count());
  return GradientsUpTo(chunk, chunk.member_count, scratch);
}

void Finish(JobShard& shard, Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  for (std::uint32_t member = chunk.folded_count; member < chunk.member_count; ++member) {
    Vacate(shard, member, chunk);
  }
  PHUB_CHECK(chunk.staged_count == 0, "chunk={}", chunk.index.value);
  chunk.folded_count = 0;
  chunk.folded_non_finite = false;
}

std::size_t DiscardStaged(JobShard& shard, Rank rank) {
  PHUB_ON_CORE_LOOP();
  Lane& lane = shard.lanes[rank.value];
  std::size_t discarded = 0;
  for (const ChunkIndex held : lane.slot_chunk) {
    if (held == ChunkIndex::Max()) continue;
    Chunk& chunk = *shard.chunks()[held.value];
    Vacate(shard, chunk.IndexOf(rank), chunk);
    ++discarded;
  }
  for (std::uint32_t i = 0; i < shard.chunk_count && lane.staged_in_place > 0; ++i) {
    Chunk& chunk = *shard.chunks()[i];
    const std::uint32_t member = chunk.IndexOf(rank);
    if (member == kNoMember || chunk.staged_data[member] == nullptr) continue;
    Vacate(shard, member, chunk);
    ++discarded;
  }
  PHUB_CHECK(lane.slots_used == 0 && lane.staged_in_place == 0, "rank={} slots_used={} in_place={}",
             rank.value, lane.slots_used, lane.staged_in_place);
  return discarded;
}

}  // namespace phub::server::aggregate
