// The definition of a key on this rank, after the checks. It does not change after the key was
// added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/commands.h"
#include "common/base/chunk_map.h"
#include "common/base/element_type.h"
#include "common/base/encoding.h"
#include "common/base/mapped_memory.h"
#include "common/wire/message.h"
#include "phub/client.h"

namespace phub::client {

// The public element types have the same values as the internal ones.
constexpr numeric::ElementType Numeric(ElementType type) {
  return static_cast<numeric::ElementType>(type);
}
constexpr bool IsKnown(ElementType type) {
  return numeric::IsElementType(static_cast<std::uint8_t>(type));
}
constexpr ElementType Public(numeric::ElementType type) { return static_cast<ElementType>(type); }
static_assert(Numeric(f32) == numeric::ElementType::kF32);
static_assert(Numeric(f16) == numeric::ElementType::kF16);
static_assert(Numeric(bf16) == numeric::ElementType::kBf16);
static_assert(Numeric(f64) == numeric::ElementType::kF64);
static_assert(Numeric(i32) == numeric::ElementType::kI32);
static_assert(Numeric(i64) == numeric::ElementType::kI64);
static_assert(Numeric(u8) == numeric::ElementType::kU8);

constexpr KeyMovement Internal(Movement movement) { return static_cast<KeyMovement>(movement); }
static_assert(Internal(Movement::kAllReduce) == KeyMovement::kAllReduce);
static_assert(Internal(Movement::kGather) == KeyMovement::kGather);
static_assert(Internal(Movement::kReduceScatter) == KeyMovement::kReduceScatter);
static_assert(Internal(Movement::kAllToAll) == KeyMovement::kAllToAll);
static_assert(Internal(Movement::kScatter) == KeyMovement::kScatter);
static_assert(Internal(Movement::kGatherToOne) == KeyMovement::kGatherToOne);

inline constexpr std::uint64_t kNowhere = UINT64_MAX;  // not an offset

// The engine's level of a priority class.
constexpr std::uint8_t LevelOf(PriorityClass priority_class) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(priority_class) -
                                   static_cast<std::uint8_t>(PriorityClass::kData));
}
static_assert(LevelOf(PriorityClass::kTensor) + 1 == kPriorityLevels);

struct KeyDefinition {
  std::string name;
  std::uint64_t element_count = 0;  // parts.largest() parts
  numeric::ElementType type{};
  numeric::ElementType gradient_type{};
  numeric::ElementType parameter_type{};
  Operation operation{};  // not kDefault
  KeyParts parts;
  Rank rank{};                // this rank, or its index in `members`
  std::vector<Rank> members;  // the ranks of its group, ascending; empty: all ranks
  Optimizer optimizer;
  wire::HyperParameters hyper_parameters{};
  std::int32_t priority = 0;
  PriorityClass priority_class = PriorityClass::kData;
  bool copy = false;
  bool collective = false;             // outside iterations and checkpoints
  bool pooled = false;                 // a slot of a pool: u8, one element for each byte
  std::string why_no_broadcasts = {};  // in pools; empty: a pooled key can have them
  std::uint64_t first_iteration = 0;   // the job's iteration when the key was added; collective: 0
  std::vector<std::uint64_t> tensors;  // at least one
  numeric::GradientEncoding encoding = {};  // of gradients on the wire
  bool error_feedback = false;              // with an encoding
  std::uint32_t chunk_elements = 0;         // except in the last chunk of a part

  // gradient_count() and parameter_count() elements, of the wire types. Set when the key is added.
  Elements gradients;
  Elements parameters;             // read-only if parameters_shared
  bool parameters_shared = false;  // one region for all workers of the host

  std::byte* encoded = nullptr;  // encoded_bytes(), likewise; null without an encoding

  // Offsets of phub's memory for them in the batch's region, if the batch has one.
  std::uint64_t own_gradients_offset = kNowhere;
  std::uint64_t own_parameters_offset = kNowhere;
  std::uint64_t own_encoded_offset = kNowhere;
  std::shared_ptr<const void> shared_memory;
  MappedMemory owned_gradients;
  MappedMemory owned_parameters;
  MappedMemory owned_encoded;
  MappedMemory residual;  // with error feedback: what earlier pushes left out

  std::uint64_t part_elements() const { return element_count / parts.largest(); }
  // What the daemon holds.
  std::uint64_t elements_held() const { return part_elements() * parts.count(); }
  std::uint64_t gradient_count() const { return part_elements() * parts.SentBy(rank); }
  std::uint64_t parameter_count() const { return part_elements() * parts.ReceivedBy(rank); }
  std::uint64_t gradients_bytes() const {
    return gradient_count() * numeric::ElementBytes(gradient_type);
  }
  // What a push sends. REQUIRES: an encoding.
  std::uint64_t encoded_bytes() const {
    return numeric::EncodedKeyBytes(encoding, element_count, chunk_elements);
  }
  std::uint64_t parameters_bytes() const {
    return parameter_count() * numeric::ElementBytes(parameter_type);
  }
};

}  // namespace phub::client
