#include "server/core/job_shard.h"

#include <new>

#include "common/base/align.h"
#include "common/base/check.h"
#include "server/core/shard_sums.h"

namespace phub::server {
namespace {

constexpr std::size_t kAlignment = 64;  // chunks are aligned to cache lines and vectors
constexpr std::size_t kKeysMax = kGroupKeysFirst + kKeysPerJobMax;
const Members kNobody;

std::size_t WordsFor(std::size_t bits) { return (bits + 63) / 64; }

// An aggregator is never a chunk's home, so no optimizer runs there.
bool IsAggregator(const ShardConfig& config) {
  return config.ranks_of_job > 0 && config.world_size == 0;
}

void CheckConfig(const ShardConfig& config) {
  PHUB_CHECK((config.world_size >= 1 || IsAggregator(config)) && config.world_size <= kRanksMax,
             "world_size={}", config.world_size);
  PHUB_CHECK(config.chunk_bytes >= kChunkBytesMin && config.chunk_bytes <= kChunkBytesMax &&
                 config.chunk_bytes % kAlignment == 0,
             "chunk_bytes={}", config.chunk_bytes);
  PHUB_CHECK(config.slots_per_lane >= 1 && config.slots_per_lane <= kSlotsPerLaneMax, "slots={}",
             config.slots_per_lane);
  PHUB_CHECK(config.replies_per_lane_max >= 1);
}

// The size of each kind of memory of one chunk.
struct ChunkSizes {
  std::size_t parameters = 0;
  std::size_t masters = 0;
  std::size_t accumulator = 0;  // also the size of each array of optimizer state
};

ChunkSizes SizesOf(std::uint32_t element_count, ElementType type, ElementType parameter_type) {
  const std::size_t elements = element_count;
  ChunkSizes sizes;
  sizes.parameters = AlignUp(elements * numeric::ElementBytes(parameter_type), kAlignment);
  if (type != parameter_type)
    sizes.masters = AlignUp(elements * numeric::ElementBytes(type), kAlignment);
  sizes.accumulator =
      AlignUp(elements * numeric::ElementBytes(numeric::AccumulationType(type)), kAlignment);
  return sizes;
}

ChunkSizes SizesOf(const KeyShardSpec& key, std::uint32_t element_count) {
  ChunkSizes sizes = SizesOf(element_count, key.type, key.parameter_type);
  // A pooled key has one element for each byte, and rounds of 16-bit types are summed in f32.
  if (key.pool_bytes != 0) sizes.accumulator = AlignUp(2 * std::size_t{element_count}, kAlignment);
  return sizes;
}

// Whether rounds of the key are summed in fixed point. Control refuses keys with sums that cannot
// be; integers have the same sums anyway, and other movements have none.
bool SumsInFixedPoint(const ShardConfig& config, const KeyShardSpec& key) {
  return config.sum_block != 0 && numeric::IsFloating(key.type) && !MovesBytes(key.movement);
}

std::uint32_t MemberCount(const ShardConfig& config, const KeyShardSpec& key) {
  return key.members == nullptr ? config.world_size : key.members->count();
}

// The memory of Chunk::copies.
std::size_t CopyBytes(const ShardConfig& config, const KeyShardSpec& key,
                      std::uint32_t element_count) {
  if (!SumsInFixedPoint(config, key)) return 0;
  const std::size_t one = std::size_t{element_count} * numeric::ElementBytes(key.gradient_type);
  return AlignUp((MemberCount(config, key) - 1) * one, kAlignment);
}

// The size of each memory region of a batch of keys.
struct BatchSizes {
  std::size_t master_bytes = 0;
  std::size_t accumulator_bytes = 0;
  std::size_t state_bytes = 0;
  std::size_t chunk_count = 0;
  std::size_t entry_count = 0;  // chunks times members
  std::size_t word_count = 0;   // of bitmaps with a bit for each member
};

BatchSizes SizesOf(const ShardConfig& config, std::span<const KeyShardSpec> keys) {
  BatchSizes sizes;
  for (const KeyShardSpec& key : keys) {
    for (const KeyShardSpec::ChunkSpec& chunk : key.chunks) {
      const ChunkSizes one = SizesOf(key, chunk.element_count);
      sizes.accumulator_bytes += one.accumulator + CopyBytes(config, key, chunk.element_count);
      ++sizes.chunk_count;
      sizes.entry_count += MemberCount(config, key);
      sizes.word_count += WordsFor(MemberCount(config, key));
      if (IsAggregator(config)) continue;
      sizes.master_bytes += one.masters;
      sizes.state_bytes += simd::StateCount(key.optimizer) * one.accumulator;
    }
  }
  return sizes;
}

// Hands out consecutive aligned pieces of a region.
class Carver {
 public:
  explicit Carver(const MappedMemory& region) : next_(region.data()), left_(region.bytes()) {}
  std::byte* Take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    PHUB_CHECK(bytes <= left_ && bytes % kAlignment == 0, "bytes={} left={}", bytes, left_);
    std::byte* piece = next_;
    next_ += bytes;
    left_ -= bytes;
    return piece;
  }

 private:
  std::byte* next_;
  std::size_t left_;
};

// Each bitmap has a bit per chunk, in `words` words.
constexpr std::size_t kBitmapsPerLane = 3;

void InitializeLane(Lane& lane, const ShardConfig& config, std::uint64_t* bits, std::size_t words) {
  lane.pending_reply = bits;
  lane.pending_previous = bits + words;
  lane.pending_summed = bits + 2 * words;
  lane.landing.resize(config.slots_per_lane);
  lane.slot_chunk.assign(config.slots_per_lane, ChunkIndex::Max());
  lane.credits_waiting.reserve(config.slots_per_lane);
}

void InitializeKey(ShardKey& key, const KeyShardSpec& spec, const ShardConfig& config) {
  key.key = spec.key;
  key.reduction = spec.reduction;
  key.optimizer = spec.optimizer;
  key.movement = spec.movement;
  key.collective = spec.collective;
  key.members = spec.members;
  key.group_work = spec.group_work;
  key.chunks_numbered = spec.first_chunk.has_value();
  key.first_chunk = ChunkIndex{spec.first_chunk.value_or(0)};
  key.pool_bytes = spec.pool_bytes;
  key.level = spec.level;
  key.type = spec.type;
  key.gradient_type = spec.gradient_type;
  key.parameter_type = spec.parameter_type;
  key.encoding = spec.encoding;
  key.sum_block = SumsInFixedPoint(config, spec) ? config.sum_block : 0;
  key.first_values = spec.hyper_parameters;
  key.hyper_parameters[1 % kHyperVersionsPerKey] = {HyperVersion{1}, Rank{0},
                                                    spec.hyper_parameters};
}

// Allocates the regions of a batch. False: out of memory.
bool AllocateBatch(KeyBatch& batch, const BatchSizes& sizes) {
  using Backing = MappedMemory::Backing;
  batch.masters = MappedMemory::Allocate(sizes.master_bytes, Backing::kLater);
  batch.accumulators = MappedMemory::Allocate(sizes.accumulator_bytes, Backing::kOnTouch);
  batch.state = MappedMemory::Allocate(sizes.state_bytes, Backing::kLater);
  return (sizes.master_bytes == 0 || batch.masters) &&
         (sizes.accumulator_bytes == 0 || batch.accumulators) &&
         (sizes.state_bytes == 0 || batch.state);
}

}  // namespace

const char* ToString(LossPolicy policy) { return policy == LossPolicy::kFail ? "fail" : "wait"; }

const char* ToString(Screening screening) {
  switch (screening) {
    case Screening::kOff: return "off";
    case Screening::kReport: return "report";
    case Screening::kReject: return "reject";
  }
  return "unknown";
}

JobShard::JobShard() = default;
JobShard::~JobShard() = default;

const wire::HyperParameters& ShardKey::ValuesOf(HyperVersion version) const {
  const HyperParameterSet& set = hyper_parameters[version.value % kHyperVersionsPerKey];
  return version.value != 0 && set.version == version ? set.values : first_values;
}

std::uint64_t StagingBytesPerLane(const ShardConfig& config) {
  return std::uint64_t{config.slots_per_lane} * config.chunk_bytes;
}

std::uint32_t Chunk::PoolBytes(const wire::MessageHeader& header) const {
  const std::uint32_t size = numeric::ElementBytes(header.type);
  const std::uint64_t first = element_offset / size;
  if (header.pool.elements > key->pool_bytes / size || header.pool.elements <= first) return 0;
  const std::uint64_t left = header.pool.elements - first;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(element_count / size, left)) * size;
}

std::uint64_t JobShardBytes(const ShardConfig& config) {
  const std::uint64_t per_slot =
      sizeof(transport::LandingSlot) + sizeof(ChunkIndex) + sizeof(Lane::WaitingCredit);
  return sizeof(JobShard) + std::uint64_t{config.world_size} *
                                (StagingBytesPerLane(config) + sizeof(Lane) + sizeof(RankMetrics) +
                                 config.slots_per_lane * per_slot);
}

std::uint64_t KeyBatchBytes(const ShardConfig& config, std::span<const KeyShardSpec> keys) {
  const BatchSizes sizes = SizesOf(config, keys);
  const std::uint64_t per_rank =
      sizeof(const std::byte*) + sizeof(SlotIndex) + sizeof(SharedAddress);
  return sizeof(KeyBatch) + keys.size() * sizeof(ShardKey) + sizes.chunk_count * sizeof(Chunk) +
         sizes.entry_count * per_rank + sizes.word_count * sizeof(std::uint64_t) +
         sizes.master_bytes + sizes.accumulator_bytes + sizes.state_bytes;
}

std::unique_ptr<JobShard> MakeJobShard(const ShardConfig& config) {
  CheckConfig(config);
  using Backing = MappedMemory::Backing;
  auto shard = std::make_unique<JobShard>();
  shard->config = config;
  const std::size_t words_per_lane = WordsFor(kChunksPerShardMax);
  shard->chunk_table =
      MappedMemory::Allocate(std::size_t{kChunksPerShardMax} * sizeof(Chunk*), Backing::kOnTouch);
  shard->key_table = MappedMemory::Allocate(kKeysMax * sizeof(ShardKey*), Backing::kOnTouch);
  shard->no_key->key = KeyIndex::Max();
  shard->no_key->collective = true;
  shard->no_chunk->key = shard->no_key.get();
  shard->no_chunk->members = &kNobody;
  shard->pending_bits = MappedMemory::Allocate(
      kBitmapsPerLane * config.world_size * words_per_lane * sizeof(std::uint64_t),
      Backing::kOnTouch);
  const bool has_bits = shard->pending_bits || config.world_size == 0;
  if (!shard->chunk_table || !shard->key_table || !has_bits) return nullptr;
  shard->lanes.resize(config.world_size);
  shard->metrics.ranks = std::make_unique<RankMetrics[]>(config.world_size);
  auto* words = reinterpret_cast<std::uint64_t*>(shard->pending_bits.data());
  for (std::size_t rank = 0; rank < config.world_size; ++rank) {
    std::uint64_t* const own = words + kBitmapsPerLane * rank * words_per_lane;
    InitializeLane(shard->lanes[rank], config, own, words_per_lane);
  }
  shard->memory_bytes = JobShardBytes(config);
  return shard;
}

std::unique_ptr<KeyBatch> MakeKeyBatch(const ShardConfig& config,
                                       std::span<const KeyShardSpec> keys) {
  CheckConfig(config);
  const BatchSizes sizes = SizesOf(config, keys);
  auto batch = std::make_unique<KeyBatch>();
  if (!AllocateBatch(*batch, sizes)) return nullptr;
  batch->staged_data.assign(sizes.entry_count, nullptr);
  batch->staged_slots.assign(sizes.entry_count, kNoSlot);
  batch->reply_addresses.assign(sizes.entry_count, SharedAddress{});
  batch->wants_reply.assign(sizes.word_count, 0);
  batch->keys.resize(keys.size());
  batch->chunks.resize(sizes.chunk_count);

  Carver masters(batch->masters), accumulators(batch->accumulators), state(batch->state);
  std::size_t number = 0;
  std::size_t entry = 0;
  std::size_t word = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const KeyShardSpec& spec = keys[i];
    const std::uint32_t member_count = MemberCount(config, spec);
    InitializeKey(batch->keys[i], spec, config);
    for (const KeyShardSpec::ChunkSpec& piece : spec.chunks) {
      PHUB_CHECK(piece.element_count > 0 &&
                     std::uint64_t{piece.element_count} * numeric::ElementBytes(spec.type) <=
                         config.chunk_bytes,
                 "elements={}", piece.element_count);
      const ChunkSizes one = SizesOf(spec, piece.element_count);
      const std::size_t offset = piece.element_offset * numeric::ElementBytes(spec.parameter_type);
      Chunk& chunk = batch->chunks[number];
      chunk.key = &batch->keys[i];
      chunk.members = spec.members;
      chunk.member_count = member_count;
      chunk.element_count = piece.element_count;
      chunk.element_offset = piece.element_offset;
      chunk.sender = piece.sender;
      chunk.receiver = piece.receiver;
      for (std::uint32_t v = 0; v < 2; ++v) {
        std::byte* const base = spec.parameters[config.versions() == 2 ? v : 0];
        PHUB_CHECK(base != nullptr, "key={} version={}", spec.key.value, v);
        chunk.parameters[v] = base + offset;
      }
      chunk.accumulator = accumulators.Take(one.accumulator);
      chunk.copies = accumulators.Take(CopyBytes(config, spec, piece.element_count));
      if (!IsAggregator(config)) chunk.masters = masters.Take(one.masters);
      const std::size_t state_count = IsAggregator(config) ? 0 : simd::StateCount(spec.optimizer);
      for (std::size_t s = 0; s < state_count; ++s) {
        chunk.state[s] = state.Take(one.accumulator);
      }
      chunk.staged_data = batch->staged_data.data() + entry;
      chunk.staged_slot = batch->staged_slots.data() + entry;
      chunk.reply_address = batch->reply_addresses.data() + entry;
      chunk.wants_reply = batch->wants_reply.data() + word;
      entry += member_count;
      word += WordsFor(member_count);
      ++number;
    }
  }
  batch->memory_bytes = KeyBatchBytes(config, keys);
  return batch;
}

std::unique_ptr<CheckpointImage> MakeCheckpointImage(std::span<const Chunk* const> chunks,
                                                     std::size_t key_count) {
  std::uint64_t bytes = sizeof(CheckpointImage) + key_count * sizeof(CheckpointImage::KeyImage) +
                        chunks.size() * sizeof(CheckpointImage::ChunkImage);
  const auto sizes_of = [](const Chunk& chunk) {
    return SizesOf(chunk.element_count, chunk.key->type, chunk.key->parameter_type);
  };
  for (const Chunk* chunk : chunks) {
    if (!chunk->IsSaved()) continue;
    const ChunkSizes one = sizes_of(*chunk);
    bytes += one.parameters + one.masters;
    bytes += simd::StateCount(chunk->key->optimizer) * one.accumulator;
  }
  auto image = std::make_unique<CheckpointImage>();
  image->memory = MappedMemory::Allocate(bytes, MappedMemory::Backing::kLater);
  if (!image->memory) return nullptr;
  image->keys.resize(key_count);
  image->chunks = std::make_unique<CheckpointImage::ChunkImage[]>(chunks.size());
  image->chunk_count = static_cast<std::uint32_t>(chunks.size());
  Carver memory(image->memory);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = *chunks[i];
    if (!chunk.IsSaved()) continue;
    ++image->chunks_left;
    const ChunkSizes one = sizes_of(chunk);
    CheckpointImage::ChunkImage& copy = image->chunks[i];
    copy.parameters = memory.Take(one.parameters);
    copy.masters = memory.Take(one.masters);
    for (std::size_t s = 0; s < simd::StateCount(chunk.key->optimizer); ++s) {
      copy.state[s] = memory.Take(one.accumulator);
    }
  }
  return image;
}

}  // namespace phub::server
