#include "server/core/checkpoint/shard_checkpoint.h"

#include <cstring>

#include "common/base/check.h"
#include "server/core/on_core_loop.h"

namespace phub::server::checkpoint {
namespace {

constexpr std::size_t kBytesPerAdvance = 256 * 1024;

std::size_t StateBytes(const Chunk& chunk) {
  return chunk.Bytes(numeric::AccumulationType(chunk.key->type));
}

// The image of the chunk if it is in the snapshot, is at its target and is not copied yet; else
// null.
CheckpointImage::ChunkImage* Due(JobShard& shard, const Chunk& chunk) {
  CheckpointImage* const image = shard.snapshot;
  if (!chunk.IsSaved()) return nullptr;
  if (image == nullptr || image->missed || chunk.index.value >= shard.snapshot_chunks)
    return nullptr;
  CheckpointImage::ChunkImage& copy = image->chunks[chunk.index.value];
  if (copy.ready.load(std::memory_order_relaxed)) return nullptr;
  return chunk.reductions == image->keys[chunk.key->key.value].target ? &copy : nullptr;
}

std::size_t Copy(CheckpointImage& image, const Chunk& chunk, CheckpointImage::ChunkImage& copy) {
  std::size_t bytes = chunk.reply_bytes();
  std::memcpy(copy.parameters, chunk.Parameters(chunk.applied), bytes);
  if (chunk.masters != nullptr) {
    std::memcpy(copy.masters, chunk.masters, chunk.Bytes(chunk.key->type));
    bytes += chunk.Bytes(chunk.key->type);
  }
  for (std::size_t s = 0; s < copy.state.size(); ++s) {
    if (chunk.state[s] == nullptr) continue;
    std::memcpy(copy.state[s], chunk.state[s], StateBytes(chunk));
    bytes += StateBytes(chunk);
  }
  copy.reductions = chunk.reductions;
  copy.applied = chunk.applied;
  image.keys[chunk.key->key.value].hyper_parameters =
      chunk.key->ValuesOf(chunk.applied_hyper_version[chunk.applied.value % 2]);
  PHUB_CHECK(image.chunks_left > 0);
  --image.chunks_left;
  copy.ready.store(true, std::memory_order_release);
  return bytes;
}

}  // namespace

bool Begin(JobShard& shard, CheckpointImage& image) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(shard.snapshot == nullptr);
  PHUB_CHECK(image.chunk_count <= shard.chunk_count && image.keys.size() <= shard.key_count);
  for (std::uint32_t i = 0; i < image.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    if (chunk.IsSaved() && chunk.reductions > image.keys[chunk.key->key.value].target) {
      image.missed = true;
      return false;
    }
  }
  shard.snapshot = &image;
  shard.snapshot_chunks = image.chunk_count;
  return true;
}

void BeforeRound(JobShard& shard, const Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  if (CheckpointImage::ChunkImage* copy = Due(shard, chunk)) Copy(*shard.snapshot, chunk, *copy);
}

void AfterRound(JobShard& shard, const Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  if (CheckpointImage::ChunkImage* copy = Due(shard, chunk)) Copy(*shard.snapshot, chunk, *copy);
}

bool Advance(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  CheckpointImage* const image = shard.snapshot;
  if (image == nullptr || image->missed || image->cursor >= shard.snapshot_chunks) return false;
  std::size_t bytes = 0;
  while (image->cursor < shard.snapshot_chunks && bytes < kBytesPerAdvance) {
    const Chunk& chunk = *shard.chunks()[image->cursor++];
    if (CheckpointImage::ChunkImage* copy = Due(shard, chunk)) bytes += Copy(*image, chunk, *copy);
  }
  return true;
}

bool Whole(const JobShard& shard) {
  return shard.snapshot != nullptr && !shard.snapshot->missed && shard.snapshot->chunks_left == 0;
}

void PutInPlace(const JobShard& shard, Chunk& chunk, std::span<std::byte* const> own_replies) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(shard.CheckpointIsLoaded(chunk) && chunk.IsSaved());
  const CheckpointImage::ChunkImage& image = shard.loaded->chunks[chunk.index.value];
  std::memcpy(chunk.NextParameters(), image.parameters, chunk.reply_bytes());
  if (chunk.masters != nullptr) {
    std::memcpy(chunk.masters, image.masters, chunk.Bytes(chunk.key->type));
  }
  for (std::size_t s = 0; s < chunk.state.size(); ++s) {
    if (chunk.state[s] != nullptr) std::memcpy(chunk.state[s], image.state[s], StateBytes(chunk));
  }
  chunk.reductions = image.reductions;
  for (std::byte* const reply : own_replies) {
    std::memcpy(reply, chunk.NextParameters(), chunk.reply_bytes());
    if (shard.long_work != nullptr) shard.long_work->Note(chunk.reply_bytes());
  }
}

void CountAsLoaded(const JobShard& shard, Chunk& chunk) {
  // Control may have dropped the loaded state if a worker did not keep the order of calls.
  if (!shard.CheckpointIsLoaded(chunk)) return;
  chunk.reductions = shard.loaded->chunks[chunk.index.value].reductions;
}

}  // namespace phub::server::checkpoint
