// Jobs with apply=iteration: notifies ranks of summed chunks (kSummed). Part of ReplyStage.
#include <bit>

#include "server/core/reply/bits.h"
#include "server/core/reply/reply.h"

namespace phub::server::reply {
bool ReplyStage::PostSummed(JobShard& shard, const Chunk& chunk, std::uint8_t transport_index,
                            std::span<const transport::ConnectionId> connections) {
  transport::SendRequest request;
  request.header = HeaderFor(shard, wire::MessageKind::kSummed);
  request.header.iteration = Iteration{chunk.applied.value + 1};
  request.header.chunk = chunk.index;
  request.header.key = chunk.key->key;
  if (chunk.skip_asked) request.header.flags |= wire::kFlagSkip;
  if (chunk.sum_non_finite) request.header.flags |= wire::kFlagNonFinite;
  request.header.value_bits = std::bit_cast<std::uint64_t>(chunk.squared_norm);
  request.connections = connections;
  if (transports_[transport_index]->Post({&request, 1}) == 0) return false;
  counters_.Add(CoreCounter::sums_told, connections.size());
  return true;
}

void ReplyStage::DeferSummed(JobShard& shard, Lane& lane, const Chunk& chunk) {
  if (TestAndSet(lane.pending_summed, chunk.index.value)) return;
  ++lane.summed_pending;
  ++shard.reply_backlog;
}

// Posts one request for all lanes of each transport.
void ReplyStage::TellSummed(JobShard& shard, const Chunk& chunk) {
  for (std::size_t i = 0; i < transports_.size(); ++i) {
    std::size_t count = 0;
    const auto is_meant = [&](std::uint32_t rank) {
      const Lane& lane = shard.lanes[rank];
      return lane.state == Lane::State::kOpen && lane.transport_index == i &&
             Test(chunk.wants_reply, chunk.IndexOf(Rank{rank}));
    };
    for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank) {
      if (!is_meant(rank)) continue;
      DropCredit(shard, shard.lanes[rank], chunk.index);
      connections_[count++] = shard.lanes[rank].connection;
    }
    if (count == 0 ||
        PostSummed(shard, chunk, static_cast<std::uint8_t>(i), {connections_.data(), count})) {
      continue;
    }
    for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank) {
      if (is_meant(rank)) DeferSummed(shard, shard.lanes[rank], chunk);
    }
  }
}

void ReplyStage::TellSummed(JobShard& shard, const Chunk& chunk, Rank rank) {
  Lane& lane = shard.lanes[rank.value];
  // Wait for the tenant's bandwidth, like the slot's credit, because this message frees the slot
  // too.
  if (shard.turn.throttled()) return DeferSummed(shard, lane, chunk);
  DropCredit(shard, lane, chunk.index);
  if (PostSummed(shard, chunk, lane.transport_index, {&lane.connection, 1})) return;
  DeferSummed(shard, lane, chunk);
}

bool ReplyStage::FlushSummed(JobShard& shard, Lane& lane) {
  const std::uint32_t words = WordsOfChunks(shard);
  bool posted = false;
  for (std::uint32_t i = 0; i < words && lane.summed_pending > 0; ++i) {
    std::uint64_t& word = lane.pending_summed[i];
    while (word != 0) {
      const Chunk& chunk =
          *shard.chunks()[i * kWordBits + static_cast<std::uint32_t>(std::countr_zero(word))];
      // If the chunk was applied meanwhile, the rank had decided before it lost its lane, so it
      // knows.
      const bool wanted = chunk.is_summed;
      if (wanted) DropCredit(shard, lane, chunk.index);
      if (wanted && !PostSummed(shard, chunk, lane.transport_index, {&lane.connection, 1})) {
        return posted;
      }
      posted |= wanted;
      word &= word - 1;
      --lane.summed_pending;
      --shard.reply_backlog;
    }
  }
  return posted;
}

}  // namespace phub::server::reply
