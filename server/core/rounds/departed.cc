#include "server/core/rounds/departed.h"

#include "common/base/check.h"
#include "server/core/shard_sums.h"

namespace phub::server::departed {
namespace {

void Fault(Outbox& outbox, JobShard& shard, const Chunk& chunk, Rank departed, Rank other) {
  outbox.Fault({.code = FaultCode::kDepartedRank,
                .source = departed,
                .other = other,
                .key = chunk.key->key,
                .iteration = Iteration{chunk.applied.value + 1},
                .shard = &shard});
}

// A rank of the chunk's round other than the rank that has left.
Rank OtherThan(const JobShard& shard, const Chunk& chunk, Rank departed) {
  Rank other = chunk.first_rank;
  for (std::uint32_t i = 0; i < chunk.member_count && other == departed; ++i) {
    const Rank rank = chunk.RankOf(i);
    if (!shard.lanes[rank.value].departed) other = rank;
  }
  return other;
}

}  // namespace

void OnRankLeft(Outbox& outbox, JobShard& shard, Rank rank) {
  PHUB_CHECK(rank.value < shard.lanes.size(), "rank={}", rank.value);
  Lane& lane = shard.lanes[rank.value];
  if (lane.departed) return;
  lane.departed = true;
  ++shard.departed_count;
  if (!shard.live()) return;
  const bool undecided = shard.iteration.summed_count > 0 && !lane.decided;
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    if (!chunk.IsMember(rank)) continue;
    const bool pushed = !HasBegun(shard, chunk) || HasGradientOf(shard, chunk, rank);
    if (!(chunk.is_summed ? undecided : !pushed)) continue;
    return Fault(outbox, shard, chunk, rank, OtherThan(shard, chunk, rank));
  }
}

bool FaultIfNeeded(Outbox& outbox, JobShard& shard, const Chunk& chunk, Rank rank) {
  if (shard.departed_count == 0) return false;
  for (std::uint32_t member = 0; member < chunk.member_count; ++member) {
    const Rank other = chunk.RankOf(member);
    if (!shard.lanes[other.value].departed || HasGradientOf(shard, chunk, other)) continue;
    Fault(outbox, shard, chunk, other, rank);
    return true;
  }
  return false;
}

bool FaultIfUndecidable(Outbox& outbox, JobShard& shard, const Chunk& chunk) {
  if (shard.departed_count == 0) return false;
  std::uint32_t departed = 0;
  while (!shard.lanes[departed].departed) ++departed;
  Fault(outbox, shard, chunk, Rank{departed}, OtherThan(shard, chunk, Rank{departed}));
  return true;
}

}  // namespace phub::server::departed
