#include "server/control/keys/key_specs.h"

#include <cmath>
#include <set>

#include "common/base/check.h"
#include "common/optimizer/message_fields.h"
#include "common/optimizer/optimizer_table.h"
#include "server/control/jobs/sum_options.h"
#include "server/control/keys/key_encoding.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// More than any machine can hold, and small enough that sums of sizes cannot overflow.
constexpr std::uint64_t kKeyElementsMax = std::uint64_t{1} << 40;
static_assert(kKeyElementsMax * kElementBytesMax <= UINT64_MAX / kKeysPerJobMax / 8);

static_assert(v1::ELEMENT_TYPE_F32 == static_cast<int>(ElementType::kF32));
static_assert(v1::ELEMENT_TYPE_U8 == static_cast<int>(ElementType::kU8));
static_assert(numeric::kElementTypeMax == v1::ELEMENT_TYPE_U8);
static_assert(v1::MOVEMENT_GATHER == static_cast<int>(KeyMovement::kGather));
static_assert(v1::MOVEMENT_REDUCE_SCATTER == static_cast<int>(KeyMovement::kReduceScatter));
static_assert(v1::MOVEMENT_ALL_TO_ALL == static_cast<int>(KeyMovement::kAllToAll));
static_assert(v1::MOVEMENT_SCATTER == static_cast<int>(KeyMovement::kScatter));
static_assert(v1::MOVEMENT_GATHER_TO_ONE == static_cast<int>(KeyMovement::kGatherToOne));
static_assert(kMovementMax == v1::MOVEMENT_GATHER_TO_ONE);

ElementType TypeOf(v1::ElementType type) {
  PHUB_CHECK(type >= 1 && type <= numeric::kElementTypeMax, "type={}", static_cast<int>(type));
  return static_cast<ElementType>(type);
}
bool IsType(int value) { return value >= 1 && value <= numeric::kElementTypeMax; }

Reduction ReductionOf(v1::Operation operation) {
  switch (operation) {
    case v1::OPERATION_SUM: return Reduction::kSum;
    case v1::OPERATION_MEAN: return Reduction::kMean;
    case v1::OPERATION_MIN: return Reduction::kMin;
    case v1::OPERATION_MAX: return Reduction::kMax;
    case v1::OPERATION_PRODUCT: return Reduction::kProduct;
    case v1::OPERATION_BITWISE_AND: return Reduction::kBitwiseAnd;
    case v1::OPERATION_BITWISE_OR: return Reduction::kBitwiseOr;
    case v1::OPERATION_BITWISE_XOR: return Reduction::kBitwiseXor;
    default: break;
  }
  PHUB_CHECK(false, "operation={}", static_cast<int>(operation));
  return Reduction::kSum;
}

// REQUIRES: the table has this kind.
const optimizer::Descriptor& OptimizerOf(v1::OptimizerKind kind) {
  const optimizer::Descriptor* const row = optimizer::FindDescriptor(kind);
  PHUB_CHECK(row != nullptr, "optimizer={}", static_cast<int>(kind));
  return *row;
}

absl::Status Wrong(const v1::KeySpec& key, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("key {}: {}", key.name(), what));
}

// A key can be sent in its own type, and f32 also as f16 or bf16.
absl::Status CheckWireType(const v1::KeySpec& key, const char* field, int wire) {
  if (wire == v1::ELEMENT_TYPE_UNSPECIFIED) return absl::OkStatus();
  const ElementType type = TypeOf(key.type());
  if (IsType(wire) && numeric::IsWireTypeOf(static_cast<ElementType>(wire), type)) {
    return absl::OkStatus();
  }
  return Wrong(
      key, fmt::format("{} is {}, but {} values can be sent only as {}", field,
                       IsType(wire) ? numeric::ToString(static_cast<ElementType>(wire))
                                    : fmt::format("type number {}", wire).c_str(),
                       numeric::ToString(type),
                       type == ElementType::kF32 ? "f32, bf16 or f16" : numeric::ToString(type)));
}

// At least one element each, so a key cannot have more tensors than elements.
absl::Status CheckTensors(const v1::KeySpec& key) {
  std::uint64_t left = key.element_count();
  for (const std::uint64_t elements : key.tensors()) {
    if (elements == 0 || elements > left) {
      return Wrong(key, fmt::format("its tensors must have {} elements together, and at least one "
                                    "each",
                                    key.element_count()));
    }
    left -= elements;
  }
  if (key.tensors().empty() || left == 0) return absl::OkStatus();
  return Wrong(key, fmt::format("element_count is {}, but its tensors have {} elements",
                                key.element_count(), key.element_count() - left));
}

absl::Status CheckTypes(const v1::KeySpec& key) {
  if (!IsType(key.type())) {
    return Wrong(key, fmt::format("unknown element type number {}; this daemon supports f32, "
                                  "f16, bf16, f64, i32, i64, u8",
                                  static_cast<int>(key.type())));
  }
  if (key.operation() < v1::OPERATION_SUM || key.operation() > v1::Operation_MAX) {
    return Wrong(key, fmt::format("unknown operation number {}; this daemon supports sum, mean, "
                                  "min, max, product, bitwise and, bitwise or, bitwise xor",
                                  static_cast<int>(key.operation())));
  }
  if (optimizer::FindDescriptor(key.optimizer()) == nullptr) {
    return Wrong(key, fmt::format("unknown optimizer number {}; this daemon supports {}",
                                  static_cast<int>(key.optimizer()), optimizer::Names()));
  }
  const ElementType type = TypeOf(key.type());
  if (!numeric::IsFloating(type) && key.operation() == v1::OPERATION_MEAN) {
    return Wrong(
        key,
        fmt::format("operation mean does not support {}: a mean of {} values may be fractional; "
                    "integer keys support all other operations",
                    numeric::ToString(type), numeric::ToString(type)));
  }
  if (!numeric::IsReductionOf(ReductionOf(key.operation()), type)) {
    return Wrong(
        key, fmt::format("operation {} needs an integer key, but its type is {}",
                         numeric::ToString(ReductionOf(key.operation())), numeric::ToString(type)));
  }
  if (!numeric::IsFloating(type) && key.optimizer() != v1::OPTIMIZER_NONE) {
    return Wrong(key,
                 fmt::format("optimizer {} needs a floating-point key, but its type is {}; integer "
                             "keys must use optimizer none",
                             OptimizerOf(key.optimizer()).name, numeric::ToString(type)));
  }
  if (absl::Status status = CheckWireType(key, "gradient_type", key.gradient_type());
      !status.ok()) {
    return status;
  }
  return CheckWireType(key, "parameter_type", key.parameter_type());
}

std::string RangeBroken(const optimizer::Descriptor& optimizer,
                        const optimizer::HyperParameter& parameter, double value) {
  const char* const name = parameter.field().name;
  const auto must_be = [&](const char* allowed) {
    return fmt::format("{} of {} is {:.17g}; it must be {}", name, optimizer.name, value, allowed);
  };
  switch (parameter.range) {
    case optimizer::Range::kZero: return fmt::format("{} of {} must be 0", name, optimizer.name);
    case optimizer::Range::kBelowOne: return must_be("at least 0 and less than 1");
    case optimizer::Range::kAboveZero:
      if (value == 0) return must_be("more than 0");
      break;
    default: break;
  }
  return must_be("at least 0");
}

// Applies the limits of torch.optim to the hyper-parameters of the optimizer. Hyper-parameters that
// the optimizer does not use may have any finite value.
absl::Status CheckHyperParameters(const v1::KeySpec& key) {
  const wire::HyperParameters values = optimizer::FromMessage(key.hyper_parameters());
  for (const optimizer::Field& field : optimizer::kFields) {
    if (!std::isfinite(values.*field.value))
      return Wrong(key, fmt::format("{} is not finite", field.name));
  }
  const optimizer::Descriptor& optimizer = OptimizerOf(key.optimizer());
  for (const optimizer::HyperParameter& parameter : optimizer.hyper_parameters) {
    const double value = values.*parameter.value;
    if (!IsIn(parameter.range, value)) return Wrong(key, RangeBroken(optimizer, parameter, value));
  }
  return absl::OkStatus();
}

absl::Status CheckMovement(const KeyBuild& build, const v1::KeySpec& key) {
  if (key.movement() < 0 || key.movement() > kMovementMax) {
    return Wrong(key, fmt::format("unknown movement number {}; this daemon supports {}",
                                  static_cast<int>(key.movement()), kMovementNames));
  }
  const KeyMovement movement = MovementOf(key);
  const char* const name = ToString(movement);
  if (key.root() != 0 && !HasRoot(movement)) {
    return Wrong(key, fmt::format("root is {}, but movement {} has no root", key.root(), name));
  }
  if (movement == KeyMovement::kAllReduce) return absl::OkStatus();
  if (build.exchanges()) {
    return Wrong(key, fmt::format("movement {} does not work in jobs that span racks, except in "
                                  "groups inside one rack",
                                  name));
  }
  if (build.config.apply_iteration && !key.collective()) {
    return Wrong(key, fmt::format("movement {} does not work with apply=iteration, except with "
                                  "collective keys",
                                  name));
  }
  const std::uint32_t ranks = build.ranks();
  if (key.root() >= ranks) {
    return Wrong(key, fmt::format("root is {}, but the {} has only {} ranks", key.root(),
                                  build.group == nullptr ? "job" : "group", ranks));
  }
  if (key.element_count() % PartsOf(key, ranks).count() != 0) {
    return Wrong(key, fmt::format("movement {} needs equal parts: {} elements cannot be divided "
                                  "among {} ranks",
                                  name, key.element_count(), ranks));
  }
  if (key.optimizer() != v1::OPTIMIZER_NONE) {
    return Wrong(key, fmt::format("movement {} does not allow optimizer {}", name,
                                  OptimizerOf(key.optimizer()).name));
  }
  if (!MovesBytes(movement)) return absl::OkStatus();
  if (key.operation() != v1::OPERATION_SUM) {
    return Wrong(key,
                 fmt::format("movement {} moves bytes and has no operation; it must be sum", name));
  }
  const auto is_own = [&](v1::ElementType wire) {
    return wire == v1::ELEMENT_TYPE_UNSPECIFIED || wire == key.type();
  };
  if (is_own(key.gradient_type()) && is_own(key.parameter_type())) return absl::OkStatus();
  return Wrong(key, fmt::format("movement {} moves bytes: gradient_type and parameter_type "
                                "must be {}, like its type",
                                name, numeric::ToString(TypeOf(key.type()))));
}

// A process that takes over a rank could not know which rounds of a collective key its predecessor
// has made.
absl::Status CheckCollective(const KeyBuild& build, const v1::KeySpec& key) {
  if (!key.collective()) {
    if (build.group == nullptr) return absl::OkStatus();
    return Wrong(key, "keys of groups must be collective");
  }
  if (build.config.restart) return Wrong(key, "collective keys do not work with restart=true");
  if (build.exchanges() && build.group == nullptr) {
    return Wrong(key, "collective keys do not work in jobs that span racks, except in groups");
  }
  if (key.optimizer() == v1::OPTIMIZER_NONE) return absl::OkStatus();
  return Wrong(key, fmt::format("collective keys do not allow optimizer {}",
                                OptimizerOf(key.optimizer()).name));
}

absl::Status CheckPriorityClass(const v1::KeySpec& key) {
  if (v1::PriorityClass_IsValid(key.priority_class())) return absl::OkStatus();
  return Wrong(key, fmt::format("unknown priority class number {}; this daemon supports data, "
                                "pipeline, tensor",
                                static_cast<int>(key.priority_class())));
}

// A pooled key only has a size in bytes; its rounds state the rest.
absl::Status CheckPooled(const KeyBuild& build, const v1::KeySpec& key) {
  if (!key.pooled()) return absl::OkStatus();
  if (!key.collective()) return Wrong(key, "pooled keys must be collective");
  if (build.exchanges())
    return Wrong(key, "pooled keys do not work in groups that have members in several racks");
  if (TypeOf(key.type()) != numeric::ElementType::kU8) {
    return Wrong(key, fmt::format("pooled keys must have type u8; it has {}",
                                  numeric::ToString(TypeOf(key.type()))));
  }
  if (key.movement() != v1::MOVEMENT_ALL_REDUCE || key.operation() != v1::OPERATION_SUM) {
    return Wrong(key, "pooled keys must have movement all_reduce and operation sum");
  }
  if (key.tensors_size() > 1) return Wrong(key, "pooled keys cannot be bundles");
  if (build.config.sum_block != 0) return Wrong(key, "pooled keys do not work with sum=fixed");
  return absl::OkStatus();
}

absl::Status CheckKey(const KeyBuild& build, const v1::KeySpec& key, std::size_t number) {
  if (!IsName(key.name())) {
    return absl::InvalidArgumentError(
        fmt::format("key {}: the name must have 1 to {} bytes of printable UTF-8; it has {} bytes",
                    number, kNameBytesMax, key.name().size()));
  }
  if (key.element_count() == 0 || key.element_count() > kKeyElementsMax) {
    return Wrong(key, fmt::format("element_count is {}; it must be 1 to {}", key.element_count(),
                                  kKeyElementsMax));
  }
  if (absl::Status status = CheckTensors(key); !status.ok()) return status;
  if (absl::Status status = CheckTypes(key); !status.ok()) return status;
  if (absl::Status status = CheckMovement(build, key); !status.ok()) return status;
  if (absl::Status status = CheckCollective(build, key); !status.ok()) return status;
  if (absl::Status status = CheckPooled(build, key); !status.ok()) return status;
  if (absl::Status status = CheckPriorityClass(key); !status.ok()) return status;
  if (build.config.sum_block != 0) {
    const std::string why =
        WhyNotSummedFixed(TypeOf(key.type()), MovementOf(key), ReductionOf(key.operation()));
    if (!why.empty()) return Wrong(key, why);
  }
  if (const std::string why = WhyNotEncoded(build.config, key); !why.empty()) {
    return Wrong(key, why);
  }
  return CheckHyperParameters(key);
}

}  // namespace

std::uint64_t KeyBytes(const v1::KeySpec& key) {
  return key.element_count() * numeric::ElementBytes(TypeOf(key.type()));
}

KeyMovement MovementOf(const v1::KeySpec& key) { return static_cast<KeyMovement>(key.movement()); }

KeyParts PartsOf(const v1::KeySpec& key, std::uint32_t ranks) {
  return {.movement = MovementOf(key), .ranks = ranks, .root = Rank{key.root()}};
}

ChunkMap ChunksOf(const v1::KeySpec& key, std::uint32_t ranks, std::uint32_t chunk_bytes) {
  return {key.element_count(), PartsOf(key, ranks),
          chunk_bytes / numeric::ElementBytes(TypeOf(key.type()))};
}

std::uint64_t KeyParameterBytes(const v1::KeySpec& key) {
  return key.element_count() * numeric::ElementBytes(TypeOf(key.parameter_type()));
}

KeySpecs FillInDefaults(const KeySpecs& keys) {
  KeySpecs filled = keys;
  for (v1::KeySpec& key : filled) {
    if (key.gradient_type() == v1::ELEMENT_TYPE_UNSPECIFIED) key.set_gradient_type(key.type());
    if (key.parameter_type() == v1::ELEMENT_TYPE_UNSPECIFIED) key.set_parameter_type(key.type());
  }
  return filled;
}

KeyShardSpec ShardSpecOf(const v1::KeySpec& key, KeyIndex index) {
  KeyShardSpec spec;
  spec.key = index;
  spec.reduction = ReductionOf(key.operation());
  spec.optimizer = OptimizerOf(key.optimizer()).optimizer;
  spec.movement = MovementOf(key);
  spec.collective = key.collective();
  spec.pool_bytes = key.pooled() ? key.element_count() : 0;
  if (key.priority_class() != v1::PRIORITY_CLASS_UNSPECIFIED)
    spec.level = static_cast<std::uint8_t>(key.priority_class() - v1::PRIORITY_CLASS_DATA);
  spec.type = TypeOf(key.type());
  spec.gradient_type = TypeOf(key.gradient_type());
  spec.parameter_type = TypeOf(key.parameter_type());
  spec.encoding = EncodingOf(key);
  spec.hyper_parameters = optimizer::FromMessage(key.hyper_parameters());
  return spec;
}

absl::Status CheckKeys(const KeyBuild& build, const KeySpecs& keys) {
  if (keys.empty()) {
    return absl::InvalidArgumentError(fmt::format("job {}: the batch contains no keys", build.job));
  }
  const std::size_t key_count = static_cast<std::size_t>(keys.size());
  if (key_count > kKeysPerJobMax - build.keys_before()) {
    return absl::InvalidArgumentError(
        fmt::format("job {} has {} keys{}; {} more would exceed the limit of {} keys; bundle "
                    "small tensors into one key",
                    build.job, build.keys_before(), build.group == nullptr ? "" : " of groups",
                    key_count, kKeysPerJobMax));
  }
  std::uint64_t chunks = 0;
  for (const NumberSpace& numbers : build.chunk_numbers) chunks += numbers.used();
  const std::uint64_t chunks_max = std::uint64_t{kChunksPerShardMax} * build.chunk_numbers.size();
  std::set<std::string> names;
  for (std::size_t i = 0; i < key_count; ++i) {
    const v1::KeySpec& key = keys[static_cast<int>(i)];
    if (absl::Status status = CheckKey(build, key, build.keys_before() + i); !status.ok())
      return status;
    if (build.names->contains(key.name()) || !names.insert(key.name()).second) {
      return absl::InvalidArgumentError(fmt::format(
          "key {} was already added to job {}; key names must be unique", key.name(), build.job));
    }
    chunks += ChunksOf(key, build.ranks(), build.chunk_bytes).count();
  }
  if (chunks > chunks_max) {
    return absl::InvalidArgumentError(fmt::format(
        "job {}: its keys need {} chunks of {} bytes; the limit is {} chunks; use a larger "
        "chunk_bytes",
        build.job, chunks, build.chunk_bytes, chunks_max));
  }
  return absl::OkStatus();
}

}  // namespace phub::server
