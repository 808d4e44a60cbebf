#include "server/core/shard_sums.h"

#include "common/base/check.h"
#include "server/core/job_shard.h"

namespace phub::server {
namespace {

// A list of actions of one call: a clear for each position, a message for each rank, two more.
std::size_t ActionsMax(const aggregation::Geometry& geometry, std::uint32_t ranks) {
  return geometry.positions + ranks + 2;
}

// 0: every rank pushes the chunk over tcp.
std::uint32_t BlocksOf(const ShardSums& sums, const Chunk& chunk) {
  const ShardKey& key = *chunk.key;
  const bool is_summed = key.sum_block != 0 && chunk.members == nullptr && !key.collective &&
                         !chunk.is_pooled() && key.encoding.none() && chunk.sender == kEveryRank &&
                         chunk.receiver == kEveryRank && numeric::IsFloating(key.gradient_type);
  if (!is_summed) return 0;
  const std::uint32_t blocks = aggregation::BlocksOf(chunk.element_count, sums.block);
  return blocks <= sums.geometry.blocks ? blocks : 0;
}

}  // namespace

ShardSums::ShardSums(const aggregation::Geometry& the_geometry, std::uint32_t the_block,
                     std::uint32_t ranks)
    : geometry(the_geometry), block(the_block), stream(the_geometry, ranks), lanes(ranks) {
  PHUB_CHECK(geometry.positions <= 64, "positions={}", geometry.positions);
  stream.Reserve(aggregation::kStreamChunksMax);
  chunks.reserve(aggregation::kStreamChunksMax);
  actions.reserve(ActionsMax(geometry, ranks));
}

aggregation::Geometry StreamGeometry(std::uint32_t chunk_bytes, std::uint32_t block) {
  // Elements of 16 bits; a chunk of them has twice as many blocks as one of f32.
  const std::uint32_t most = aggregation::BlocksOf(chunk_bytes / 2, block);
  return {.positions = kStreamPositions,
          .blocks = most != 0 ? most : aggregation::BlocksOf(chunk_bytes / 4, block)};
}

// Only keys of groups have numbers that others had before, and they have no streams.
void AddStreamChunk(JobShard& shard, const Chunk& chunk) {
  if (shard.sums == nullptr || chunk.index.value >= aggregation::kStreamChunksMax) return;
  ShardSums& sums = *shard.sums;
  const std::uint32_t blocks = BlocksOf(sums, chunk);
  if (chunk.index.value < sums.chunks.size()) {
    PHUB_CHECK(blocks == 0, "chunk={}", chunk.index.value);
    return;
  }
  while (sums.chunks.size() < chunk.index.value) {
    sums.stream.AddChunk(0, {});
    sums.chunks.emplace_back();
  }
  sums.stream.AddChunk(blocks, Iteration{chunk.applied.value + 1});
  sums.chunks.emplace_back();
}

// Chunks of streams are never removed, so nothing waits for those that are.
void RemoveStreamChunks(JobShard& shard, std::uint32_t first) {
  if (shard.sums == nullptr || first >= shard.sums->chunks.size()) return;
  shard.sums->stream.RemoveChunks(ChunkIndex{first});
  shard.sums->chunks.resize(first);
}

void NoteNewLane(JobShard& shard, Rank rank) {
  if (shard.sums == nullptr) return;
  ShardSums& sums = *shard.sums;
  ShardSums::Lane& lane = sums.lanes[rank.value];
  lane = {.stream = true};
  for (std::uint32_t place = 0; place < sums.geometry.positions; ++place) {
    if (sums.stream.AssignmentAt(place)) lane.positions |= std::uint64_t{1} << place;
  }
}

std::uint32_t ParameterBlocksOf(const JobShard& shard, const Chunk& chunk) {
  const auto block = static_cast<std::uint32_t>(shard.sums->block * sizeof(float));
  return (chunk.reply_bytes() + block - 1) / block;
}

bool HasGradientOf(const JobShard& shard, const Chunk& chunk, Rank rank) {
  return chunk.HasArrived(rank) ||
         (shard.sums != nullptr && shard.sums->HasAnnounced(chunk.index, rank));
}

bool HasBegun(const JobShard& shard, const Chunk& chunk) {
  return chunk.arrived_count() > 0 ||
         (shard.sums != nullptr && shard.sums->IsAnnounced(chunk.index));
}

}  // namespace phub::server
