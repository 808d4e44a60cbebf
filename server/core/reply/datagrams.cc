#include "server/core/reply/datagrams.h"

#include <algorithm>

#include "server/core/count_work.h"
#include "server/core/shard_sums.h"

namespace phub::server::reply {
namespace {

std::uint32_t BytesOfBlock(const JobShard& shard) {
  return static_cast<std::uint32_t>(shard.sums->block * sizeof(float));
}

// Returns the bytes of the block.
std::uint32_t Send(JobShard& shard, const Chunk& chunk, std::uint32_t block, std::uint8_t worker) {
  const std::uint32_t size = BytesOfBlock(shard);
  const std::uint32_t first = block * size;
  const std::uint32_t bytes = std::min(size, chunk.reply_bytes() - first);
  const phub_parameters about = {.version = static_cast<__u32>(chunk.applied.value),
                                 .chunk = static_cast<__u16>(chunk.index.value),
                                 .block = static_cast<__u16>(block)};
  shard.sums->port->SendParameters(about, {chunk.Parameters(chunk.applied) + first, bytes}, worker);
  return bytes;
}

}  // namespace

void SendDatagrams(JobShard& shard, const Chunk& chunk, CoreCounters& counters) {
  const std::uint32_t blocks = ParameterBlocksOf(shard, chunk);
  for (std::uint32_t block = 0; block < blocks; ++block)
    Send(shard, chunk, block, PHUB_EVERY_WORKER);
  shard.sums->port->Flush();
  counters.Add(CoreCounter::parameter_blocks, blocks);
  counters.Add(CoreCounter::parameter_block_bytes, chunk.reply_bytes());
  CountReplies(shard, chunk, chunk.reply_bytes());
}

std::uint64_t SendDatagramsAgain(JobShard& shard, const Chunk& chunk, Rank rank,
                                 std::span<const std::byte> missing, CoreCounters& counters) {
  std::uint64_t bytes = 0;
  std::uint64_t sent = 0;
  const std::uint32_t blocks = ParameterBlocksOf(shard, chunk);
  for (std::uint32_t block = 0; block < blocks; ++block) {
    if (!missing.empty() && (std::to_integer<unsigned>(missing[block / 8]) >> block % 8 & 1) == 0)
      continue;
    bytes += Send(shard, chunk, block, static_cast<std::uint8_t>(rank.value));
    ++sent;
  }
  shard.sums->port->Flush();
  counters.Add(CoreCounter::parameter_blocks, sent);
  counters.Add(CoreCounter::parameter_block_bytes, bytes);
  counters.Add(CoreCounter::parameter_blocks_again, sent);
  CountReplies(shard, chunk, bytes);
  return bytes;
}

}  // namespace phub::server::reply
