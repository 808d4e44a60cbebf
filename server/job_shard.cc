#include "server/job_shard.h"

#include <bit>
#include <new>

#include "common/base/check.h"

namespace phub::server {
namespace {

constexpr std::size_t kAlignment = 64;  // of every chunk in memory: whole cache lines and vectors

std::size_t AlignUp(std::size_t bytes) { return (bytes + kAlignment - 1) & ~(kAlignment - 1); }

std::size_t WordsFor(std::size_t bits) { return (bits + 63) / 64; }

std::size_t StagingBytes(const ShardConfig& config) {
  return std::size_t{config.world_size} * config.slots_per_lane * config.chunk_bytes;
}

void CheckConfig(const ShardConfig& config) {
  PHUB_CHECK(config.world_size >= 1 && config.world_size <= kRanksMax, "world_size={}",
             config.world_size);
  PHUB_CHECK(config.chunk_bytes >= kChunkBytesMin && config.chunk_bytes <= kChunkBytesMax &&
                 config.chunk_bytes % kAlignment == 0,
             "chunk_bytes={}", config.chunk_bytes);
  PHUB_CHECK(config.slots_per_lane >= 1 && config.slots_per_lane <= kSlotsPerLaneMax, "slots={}",
             config.slots_per_lane);
  PHUB_CHECK(config.replies_per_lane_max >= 1);
}

// What a batch of keys takes, region by region.
struct BatchSizes {
  std::size_t parameter_bytes = 0;
  std::size_t momentum_bytes = 0;
  std::size_t chunk_count = 0;
};

BatchSizes SizesOf(std::span<const KeyShardSpec> keys) {
  BatchSizes sizes;
  for (const KeyShardSpec& key : keys) {
    for (const std::uint32_t elements : key.chunk_elements) {
      const std::size_t bytes = AlignUp(std::size_t{elements} * sizeof(float));
      sizes.parameter_bytes += bytes;
      if (key.optimizer == Optimizer::kMomentum) sizes.momentum_bytes += bytes;
      ++sizes.chunk_count;
    }
  }
  return sizes;
}

// Hands out consecutive aligned pieces of a region.
class Carver {
 public:
  explicit Carver(const MappedMemory& region) : next_(region.data()), left_(region.bytes()) {}
  float* Take(std::size_t elements) {
    const std::size_t bytes = AlignUp(elements * sizeof(float));
    PHUB_CHECK(bytes <= left_, "bytes={} left={}", bytes, left_);
    std::byte* piece = next_;
    next_ += bytes;
    left_ -= bytes;
    return reinterpret_cast<float*>(piece);
  }

 private:
  std::byte* next_;
  std::size_t left_;
};

void InitializeLane(Lane& lane, const ShardConfig& config, std::byte* staging,
                    std::uint64_t* pending_words) {
  lane.staging = staging;
  lane.pending_reply = pending_words;
  lane.landing.resize(config.slots_per_lane);
  lane.slot_chunk.assign(config.slots_per_lane, ChunkIndex::Max());
  lane.credits_waiting.reserve(config.slots_per_lane);
  for (std::uint32_t slot = 0; slot < config.slots_per_lane; ++slot) {
    lane.landing[slot] = {staging + std::size_t{slot} * config.chunk_bytes, config.chunk_bytes};
  }
}

}  // namespace

const char* ToString(LossPolicy policy) { return policy == LossPolicy::kFail ? "fail" : "wait"; }

std::uint64_t JobShardBytes(const ShardConfig& config) {
  return sizeof(JobShard) + StagingBytes(config) +
         std::uint64_t{config.world_size} *
             (sizeof(Lane) +
              config.slots_per_lane * (sizeof(transport::LandingSlot) + sizeof(ChunkIndex) +
                                       sizeof(Lane::WaitingCredit)));
}

std::uint64_t KeyBatchBytes(const ShardConfig& config, std::span<const KeyShardSpec> keys) {
  const BatchSizes sizes = SizesOf(keys);
  const std::uint64_t per_chunk = sizeof(Chunk) + config.world_size * sizeof(SlotIndex) +
                                  WordsFor(config.world_size) * sizeof(std::uint64_t);
  return sizeof(KeyBatch) + keys.size() * sizeof(KeyState) + sizes.chunk_count * per_chunk +
         2 * sizes.parameter_bytes + sizes.momentum_bytes;  // twice: parameters and accumulators
}

std::unique_ptr<JobShard> MakeJobShard(const ShardConfig& config) {
  CheckConfig(config);
  using Backing = MappedMemory::Backing;
  auto shard = std::make_unique<JobShard>();
  shard->config = config;
  const std::size_t words_per_lane = WordsFor(kChunksPerShardMax);
  shard->staging = MappedMemory::Allocate(StagingBytes(config), Backing::kPrefault);
  shard->chunk_table =
      MappedMemory::Allocate(std::size_t{kChunksPerShardMax} * sizeof(Chunk*), Backing::kOnTouch);
  shard->key_table =
      MappedMemory::Allocate(std::size_t{kKeysPerJobMax} * sizeof(KeyState*), Backing::kOnTouch);
  shard->pending_bits = MappedMemory::Allocate(
      config.world_size * words_per_lane * sizeof(std::uint64_t), Backing::kOnTouch);
  if (!shard->staging || !shard->chunk_table || !shard->key_table || !shard->pending_bits) {
    return nullptr;
  }
  shard->lanes.resize(config.world_size);
  auto* pending_words = reinterpret_cast<std::uint64_t*>(shard->pending_bits.data());
  const std::size_t lane_bytes = std::size_t{config.slots_per_lane} * config.chunk_bytes;
  for (std::size_t rank = 0; rank < config.world_size; ++rank) {
    InitializeLane(shard->lanes[rank], config, shard->staging.data() + rank * lane_bytes,
                   pending_words + rank * words_per_lane);
  }
  shard->memory_bytes = JobShardBytes(config);
  return shard;
}

std::unique_ptr<KeyBatch> MakeKeyBatch(const ShardConfig& config,
                                       std::span<const KeyShardSpec> keys) {
  CheckConfig(config);
  using Backing = MappedMemory::Backing;
  const BatchSizes sizes = SizesOf(keys);
  auto batch = std::make_unique<KeyBatch>();
  batch->parameters = MappedMemory::Allocate(sizes.parameter_bytes, Backing::kPrefault);
  batch->accumulators = MappedMemory::Allocate(sizes.parameter_bytes, Backing::kOnTouch);
  batch->momentum = MappedMemory::Allocate(sizes.momentum_bytes, Backing::kPrefault);
  if ((sizes.parameter_bytes > 0 && (!batch->parameters || !batch->accumulators)) ||
      (sizes.momentum_bytes > 0 && !batch->momentum)) {
    return nullptr;
  }
  const std::size_t mask_words = WordsFor(config.world_size);
  batch->staged_slots.assign(sizes.chunk_count * config.world_size, kNoSlot);
  batch->wants_reply.assign(sizes.chunk_count * mask_words, 0);
  batch->keys.resize(keys.size());
  batch->chunks.resize(sizes.chunk_count);

  Carver parameters(batch->parameters), accumulators(batch->accumulators),
      momentum(batch->momentum);
  std::size_t chunk_number = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const KeyShardSpec& spec = keys[i];
    KeyState& key = batch->keys[i];
    key.key = spec.key;
    key.reduction = spec.reduction;
    key.optimizer = spec.optimizer;
    key.records[1 % kRecordsPerKey] = {RecordVersion{1}, Rank{0}, spec.hyper_parameters};
    for (const std::uint32_t elements : spec.chunk_elements) {
      PHUB_CHECK(elements > 0 && elements * sizeof(float) <= config.chunk_bytes, "elements={}",
                 elements);
      Chunk& chunk = batch->chunks[chunk_number];
      chunk.parameters = parameters.Take(elements);
      chunk.accumulator = accumulators.Take(elements);
      if (spec.optimizer == Optimizer::kMomentum) chunk.momentum = momentum.Take(elements);
      chunk.key = &key;
      chunk.element_count = elements;
      chunk.staged_slot = batch->staged_slots.data() + chunk_number * config.world_size;
      chunk.wants_reply = batch->wants_reply.data() + chunk_number * mask_words;
      ++chunk_number;
    }
  }
  batch->memory_bytes = KeyBatchBytes(config, keys);
  return batch;
}

}  // namespace phub::server
