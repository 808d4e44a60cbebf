// What a shard holds of a key. job_shard.h says who owns it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/chunk_map.h"
#include "common/base/element_type.h"
#include "common/base/encoding.h"
#include "common/base/ids.h"
#include "common/base/priority_levels.h"
#include "common/simd/kernels.h"
#include "common/wire/message.h"
#include "server/core/members.h"
#include "server/metrics/shard_metrics.h"

namespace phub::server {

using numeric::ElementType;
using simd::Optimizer;
using simd::Reduction;

// A key's part in one shard: the chunks of the key that this core loop owns.
struct KeyShardSpec {
  struct ChunkSpec {
    std::uint32_t element_count = 0;
    std::uint64_t element_offset = 0;  // in the key
    Rank sender = kEveryRank;          // see KeyParts; numbered over the whole job
    Rank receiver = kEveryRank;        // likewise
  };
  // Keys of the whole job are added in order, and numbers of groups' keys begin at kGroupKeysFirst.
  // Each shard gets every key, perhaps without chunks.
  KeyIndex key{};
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  KeyMovement movement = KeyMovement::kAllReduce;
  bool collective = false;  // outside iterations and checkpoints
  // The ranks of the key's group; null: all ranks. Owned by control, valid as long as the key.
  const Members* members = nullptr;
  WorkMetrics* group_work = nullptr;  // this core loop's of the group; owned likewise
  // The number of the key's first chunk in the shard; none: it follows the chunks before it.
  std::optional<std::uint32_t> first_chunk = {};
  // Not 0: a pooled u8 key of that many bytes, whose rounds state the rest (wire::PoolRound).
  std::uint64_t pool_bytes = 0;
  std::uint8_t level = 0;                          // of its priority class, below kPriorityLevels
  ElementType type = ElementType::kF32;            // type of the parameters that are kept
  ElementType gradient_type = ElementType::kF32;   // type of gradients on the wire
  ElementType parameter_type = ElementType::kF32;  // type of parameters on the wire
  numeric::GradientEncoding encoding = {};         // of gradients on the wire
  wire::HyperParameters hyper_parameters{};        // version 1
  std::vector<ChunkSpec> chunks;                   // in offset order
  // The whole key's parameters in parameter_type, zero-filled: version v at [v % versions()]. Local
  // workers may map this memory. Owned by control, valid as long as the shard.
  std::array<std::byte*, 2> parameters{};
};

// At most two are in use at the same time; see ingest/hyper_parameters.h.
inline constexpr std::uint32_t kHyperVersionsPerKey = 4;

struct ShardKey {
  struct HyperParameterSet {
    HyperVersion version{};  // 0: empty
    Rank announced_by{};
    wire::HyperParameters values{};
  };
  KeyIndex key{};
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  KeyMovement movement = KeyMovement::kAllReduce;
  bool collective = false;
  const Members* members = nullptr;   // see KeyShardSpec
  WorkMetrics* group_work = nullptr;  // likewise
  std::uint64_t pool_bytes = 0;       // likewise
  std::uint8_t level = 0;             // likewise
  ElementType type = ElementType::kF32;
  ElementType gradient_type = ElementType::kF32;
  ElementType parameter_type = ElementType::kF32;
  numeric::GradientEncoding encoding = {};
  std::uint32_t sum_block = 0;           // its rounds are summed in fixed point; see ShardConfig
  wire::HyperParameters first_values{};  // version 1
  // Version v is at v % kHyperVersionsPerKey.
  HyperParameterSet hyper_parameters[kHyperVersionsPerKey];
  // The key's chunks in this shard have consecutive indices.
  ChunkIndex first_chunk{};
  bool chunks_numbered = false;  // first_chunk is given, and not what follows the chunks before it
  std::uint32_t chunk_count = 0;

  bool has_masters() const { return type != parameter_type; }
  // The values of a version that a round named; those of version 1 if it is no longer kept.
  const wire::HyperParameters& ValuesOf(HyperVersion version) const;
};

}  // namespace phub::server
