#include "client/session/key_checks.h"

#include <fmt/core.h>

#include <cmath>
#include <functional>
#include <utility>

#include "client/session/optimizers.h"
#include "common/base/printable.h"
#include "common/checkpoint/description.h"

namespace phub::client {
namespace {

using numeric::ToString;

constexpr std::size_t kShownBytesMax = 64;  // the shown part of a refused name

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

// The element count of a key: the sum over its tensors if it is a bundle.
Result<std::uint64_t> CountElements(const KeySpec& spec, std::uint64_t count_max) {
  std::uint64_t sum = 0;
  for (const std::uint64_t count : spec.tensors) {
    if (count == 0) return Invalid(fmt::format("key {} has a tensor of 0 elements", spec.name));
    if (count > count_max - sum)
      return Invalid(fmt::format("key {} is larger than {} elements", spec.name, count_max));
    sum += count;
  }
  if (spec.tensors.empty()) sum = spec.element_count;
  if (sum == 0) return Invalid(fmt::format("key {} has 0 elements", spec.name));
  if (sum > count_max)
    return Invalid(fmt::format("key {} is larger than {} elements", spec.name, count_max));
  if (spec.element_count != 0 && spec.element_count != sum)
    return Invalid(fmt::format("key {}: element_count is {}, but its tensors have {} elements",
                               spec.name, spec.element_count, sum));
  return sum;
}

Status CheckWireType(const KeySpec& spec, const char* what, ElementType type) {
  if (IsKnown(type) && numeric::IsWireTypeOf(Numeric(type), Numeric(spec.type))) return Status();
  return Invalid(fmt::format("key {}: {} is {}; a key of type {} allows only {}", spec.name, what,
                             IsKnown(type) ? ToString(Numeric(type)) : "not an element type",
                             ToString(Numeric(spec.type)),
                             spec.type == f32 ? "f32, f16 or bf16" : "its own type"));
}

Status CheckTypes(const KeySpec& spec, KeyDefinition& key) {
  if (!IsKnown(spec.type))
    return Invalid(fmt::format("key {}: {} is not an element type", spec.name,
                               static_cast<unsigned>(spec.type)));
  const ElementType gradient_type = spec.options.gradient_type.value_or(spec.type);
  const ElementType parameter_type = spec.options.parameter_type.value_or(spec.type);
  Status status = CheckWireType(spec, "gradient_type", gradient_type);
  if (status.ok()) status = CheckWireType(spec, "parameter_type", parameter_type);
  key.type = Numeric(spec.type);
  key.gradient_type = Numeric(gradient_type);
  key.parameter_type = Numeric(parameter_type);
  return status;
}

Status CheckArithmetic(const KeySpec& spec, KeyDefinition& key) {
  const bool has_optimizer = !std::holds_alternative<None>(spec.optimizer);
  key.operation = spec.options.operation;
  if (key.operation == Operation::kDefault)
    key.operation = has_optimizer ? Operation::kMean : Operation::kSum;
  if (has_optimizer && !numeric::IsFloating(key.type))
    return Invalid(fmt::format("key {} has type {}: optimizers need a floating-point key",
                               spec.name, ToString(key.type)));
  if (Status status = CheckOperation("key " + spec.name, key.operation, key.type); !status.ok())
    return status;
  key.optimizer = spec.optimizer;
  key.hyper_parameters = HyperParametersOf(spec.optimizer);
  return CheckHyperParameters(fmt::format("key {}", spec.name), spec.optimizer);
}

// The movement, which decides how much memory the key has. REQUIRES: types, count and optimizer are
// set.
Status CheckMovement(const KeySpec& spec, std::uint64_t count_max, KeyDefinition& key) {
  if (static_cast<std::uint8_t>(spec.options.movement) > kMovementMax)
    return Invalid(fmt::format("key {}: {} is not a movement", spec.name,
                               static_cast<unsigned>(spec.options.movement)));
  const KeyMovement movement = Internal(spec.options.movement);
  const char* const name = ToString(movement);
  const std::uint32_t root = spec.options.root;
  if (root != 0 && !HasRoot(movement))
    return Invalid(
        fmt::format("key {}: root is {}, but movement {} has no root", spec.name, root, name));
  if (root >= key.parts.ranks)
    return Invalid(fmt::format("key {}: root is {}, but the job has only {} ranks", spec.name, root,
                               key.parts.ranks));
  key.parts.movement = movement;
  key.parts.root = Rank{root};
  if (movement == KeyMovement::kAllReduce) return Status();
  if (key.element_count % key.parts.ranks != 0)
    return Invalid(
        fmt::format("key {}: movement {} needs equal parts, but its {} elements cannot "
                    "be divided among {} ranks",
                    spec.name, name, key.element_count, key.parts.ranks));
  if (key.elements_held() > count_max)
    return Invalid(
        fmt::format("key {}: movement {} has {} elements of {} ranks, but a key may have "
                    "at most {}",
                    spec.name, name, key.element_count, key.parts.ranks, count_max));
  if (!std::holds_alternative<None>(spec.optimizer))
    return Invalid(fmt::format("key {}: movement {} does not allow an optimizer", spec.name, name));
  if (!spec.tensors.empty())
    return Invalid(fmt::format("key {}: movement {} does not allow a bundle", spec.name, name));
  if (!MovesBytes(movement)) return Status();
  if (spec.options.operation != Operation::kDefault)
    return Invalid(
        fmt::format("key {}: movement {} moves bytes and has no operation; leave it "
                    "at kDefault",
                    spec.name, name));
  if (key.gradient_type == key.type && key.parameter_type == key.type) return Status();
  return Invalid(
      fmt::format("key {}: movement {} moves bytes, so gradient_type and "
                  "parameter_type must be {}, like its type",
                  spec.name, name, ToString(key.type)));
}

Status CheckCollective(const KeySpec& spec, const Membership& member, KeyDefinition& key) {
  key.collective = spec.options.collective;
  if (!key.collective) return Status();
  if (member.restart)
    return Invalid(
        fmt::format("key {}: collective keys do not work with restart=true, because a process that "
                    "takes over a rank cannot know which of their rounds were complete",
                    spec.name));
  if (member.spans_racks)
    return Invalid(
        fmt::format("key {}: collective keys do not work in jobs that span racks, except in groups",
                    spec.name));
  if (std::holds_alternative<None>(spec.optimizer)) return Status();
  return Invalid(fmt::format("key {}: collective keys do not allow an optimizer", spec.name));
}

constexpr numeric::Encoding Internal(Compression::Kind kind) {
  return static_cast<numeric::Encoding>(kind);
}
static_assert(Internal(Compression::Kind::kInt8) == numeric::Encoding::kInt8);
static_assert(Internal(Compression::Kind::kTopK) == numeric::Encoding::kTopK);
static_assert(Internal(Compression::Kind::kRandomK) == numeric::Encoding::kRandomK);

// REQUIRES: types, operation and movement are set.
std::string WhyNotCompressed(const KeyDefinition& key, const Membership& member, bool feedback) {
  if (key.type != numeric::ElementType::kF32 || key.gradient_type != key.type)
    return "needs type f32, and no other gradient_type";
  if (key.operation != Operation::kSum && key.operation != Operation::kMean)
    return "needs operation kSum or kMean";
  if (key.parts.movement != KeyMovement::kAllReduce) return "needs movement all_reduce";
  if (member.sums_fixed) return "does not work with sum=kFixed";
  if (!member.restart) return {};
  if (!feedback && key.encoding.kind == numeric::Encoding::kInt8) return {};
  return "does not work with restart=true: what a rank has not sent yet is lost with its process";
}

Status CheckCompression(const KeySpec& spec, const Membership& member, KeyDefinition& key) {
  const Compression& given = spec.options.compression;
  if (static_cast<std::uint8_t>(given.kind) > numeric::kEncodingMax)
    return Invalid(fmt::format("key {}: {} is not a kind of compression", spec.name,
                               static_cast<unsigned>(given.kind)));
  key.chunk_elements = member.chunk_bytes / numeric::ElementBytes(key.type);
  const numeric::Encoding kind = Internal(given.kind);
  const bool sparse = numeric::IsSparse(kind);
  constexpr double kMillion = numeric::kMillion;
  if (!sparse && given.kept != 0.0)
    return Invalid(fmt::format("key {}: kept is {}, but compression {} has no such share",
                               spec.name, given.kept, ToString(kind)));
  constexpr double kMost = numeric::kKeptMax / kMillion;
  if (sparse && !(given.kept * kMillion >= 0.5 && given.kept <= kMost))  // also for NaN
    return Invalid(
        fmt::format("key {}: kept is {}; compression {} needs a share from 0.000001 to "
                    "{}",
                    spec.name, given.kept, ToString(kind), kMost));
  const bool feedback = given.error_feedback.value_or(sparse);
  if (kind == numeric::Encoding::kNone) {
    if (!feedback) return Status();
    return Invalid(fmt::format("key {}: error_feedback needs a compression", spec.name));
  }
  key.encoding = {kind, static_cast<std::uint32_t>(std::lround(given.kept * kMillion))};
  key.error_feedback = feedback;
  const std::string why = WhyNotCompressed(key, member, feedback);
  if (why.empty()) return Status();
  return Invalid(fmt::format("key {}: compression {} {}", spec.name, ToString(kind), why));
}

std::string WhyNotPooled(const KeyDefinition& key) {
  if (!key.collective) return "must be collective";
  if (key.type != numeric::ElementType::kU8)
    return fmt::format("must have type u8; this one has type {}", ToString(key.type));
  if (key.parts.movement != KeyMovement::kAllReduce)
    return fmt::format("must have movement all_reduce; this one has movement {}",
                       ToString(key.parts.movement));
  if (key.operation != Operation::kSum)
    return "have no operation of their own; AllReduce() takes one for each round";
  return {};
}

Status CheckPooled(const KeySpec& spec, KeyDefinition& key) {
  key.pooled = spec.options.pooled;
  const std::string why = key.pooled ? WhyNotPooled(key) : std::string();
  if (why.empty()) return Status();
  return Invalid(fmt::format("key {}: pooled keys {}", spec.name, why));
}

// Memory that is not given stays a null pointer until phub allocates it.
Status CheckGiven(const KeySpec& spec, const char* what, const Elements& given,
                  numeric::ElementType type, std::uint64_t element_count, Elements& memory) {
  memory = Elements(nullptr, element_count, Public(type));
  if (given.count == 0) return Status();
  memory = given;
  return CheckElements(fmt::format("key {}", spec.name), what, given, type, element_count);
}

bool Aligned(ConstElements memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data) %
             numeric::ElementBytes(Numeric(memory.type)) ==
         0;
}

}  // namespace

Status CheckOperation(const std::string& place, Operation operation, numeric::ElementType type) {
  if (OperationOf(operation) == v1::OPERATION_UNSPECIFIED)
    return Invalid(
        fmt::format("{}: {} is not an operation", place, static_cast<unsigned>(operation)));
  if (numeric::IsReductionOf(ReductionOf(operation), type)) return Status();
  if (operation == Operation::kMean)
    return Invalid(
        fmt::format("{}: kMean is not defined for type {}; use kSum", place, ToString(type)));
  return Invalid(fmt::format("{}: operation {} is defined only for integers, not for {}", place,
                             ToString(ReductionOf(operation)), ToString(type)));
}

Status CheckPriorityClass(const std::string& place, PriorityClass priority_class) {
  switch (priority_class) {
    case PriorityClass::kData:
    case PriorityClass::kPipeline:
    case PriorityClass::kTensor: return Status();
  }
  return Invalid(
      fmt::format("{}: priority class {} is not a valid value (1 data, 2 pipeline, 3 "
                  "tensor)",
                  place, static_cast<int>(priority_class)));
}

Result<KeyDefinition> CheckKey(const KeySpec& spec, std::uint64_t bytes_max,
                               const Membership& member) {
  if (!IsName(spec.name))
    return Invalid(fmt::format("key name '{}' must have 1 to {} bytes of printable UTF-8",
                               Printable(spec.name, kShownBytesMax), kNameBytesMax));
  if (checkpoint::IsReservedName(spec.name))
    return Invalid(
        fmt::format("key name '{}' is reserved by the format of checkpoints; rename the "
                    "key",
                    Printable(spec.name, kShownBytesMax)));
  KeyDefinition key;
  key.name = spec.name;
  key.rank = member.rank;
  key.parts.ranks = member.world_size;
  if (Status status = CheckTypes(spec, key); !status.ok()) return status;
  const std::uint64_t count_max = bytes_max / numeric::ElementBytes(key.type);
  Result<std::uint64_t> count = CountElements(spec, count_max);
  if (!count.ok()) return count.status();
  key.element_count = *count;
  if (Status status = CheckArithmetic(spec, key); !status.ok()) return status;
  if (Status status = CheckMovement(spec, count_max, key); !status.ok()) return status;
  if (Status status = CheckCollective(spec, member, key); !status.ok()) return status;
  if (Status status = CheckCompression(spec, member, key); !status.ok()) return status;
  if (Status status = CheckPooled(spec, key); !status.ok()) return status;
  key.priority = spec.options.priority.value_or(0);
  key.priority_class = spec.options.priority_class.value_or(PriorityClass::kData);
  if (Status status = CheckPriorityClass(fmt::format("key {}", spec.name), key.priority_class);
      !status.ok())
    return status;
  key.copy = spec.options.copy;
  key.tensors = spec.tensors;
  if (key.tensors.empty()) key.tensors.push_back(*count);
  Status status = CheckGiven(spec, "gradients", spec.options.gradients, key.gradient_type,
                             key.gradient_count(), key.gradients);
  if (status.ok())
    status = CheckGiven(spec, "parameters", spec.options.parameters, key.parameter_type,
                        key.parameter_count(), key.parameters);
  if (status.ok() && key.gradients.data != nullptr && key.parameters.data != nullptr)
    status = CheckNoOverlap(fmt::format("key {}", spec.name), key, key.gradients, key.parameters);
  if (!status.ok()) return status;
  return key;
}

v1::KeySpec ToProto(const KeyDefinition& key) {
  v1::KeySpec message;
  message.set_name(key.name);
  message.set_element_count(key.elements_held());
  message.set_type(static_cast<v1::ElementType>(key.type));
  message.set_gradient_type(static_cast<v1::ElementType>(key.gradient_type));
  message.set_parameter_type(static_cast<v1::ElementType>(key.parameter_type));
  message.set_movement(static_cast<v1::Movement>(key.parts.movement));
  message.set_root(key.parts.root.value);
  message.set_encoding(static_cast<v1::Encoding>(key.encoding.kind));
  message.set_kept_millionths(key.encoding.kept_millionths);
  message.set_collective(key.collective);
  message.set_pooled(key.pooled);
  message.set_priority_class(static_cast<v1::PriorityClass>(key.priority_class));
  message.set_operation(OperationOf(key.operation));
  message.set_optimizer(OptimizerKindOf(key.optimizer));
  ToProto(key.hyper_parameters, *message.mutable_hyper_parameters());
  message.set_first_iteration(key.first_iteration);
  if (key.tensors.size() > 1)
    message.mutable_tensors()->Assign(key.tensors.begin(), key.tensors.end());
  return message;
}

Status CheckElements(const std::string& place, const char* what, ConstElements memory,
                     numeric::ElementType type, std::uint64_t element_count) {
  if (element_count == 0 && memory.count == 0) return Status();
  if (Numeric(memory.type) != type)
    return Invalid(fmt::format("{}: its {} have type {}, but type {} was given", place, what,
                               ToString(type),
                               IsKnown(memory.type) ? ToString(Numeric(memory.type)) : "unknown"));
  if (memory.count != element_count)
    return Invalid(fmt::format("{} has {} elements, but {} {} were given", place, element_count,
                               memory.count, what));
  if (memory.data == nullptr)
    return Invalid(fmt::format("{}: the pointer to its {} is null", place, what));
  if (!Aligned(memory))
    return Invalid(fmt::format("{}: its {} must be aligned to {} bytes", place, what,
                               numeric::ElementBytes(type)));
  return Status();
}

Status CheckNoOverlap(const std::string& place, ConstElements gradients, ConstElements parameters) {
  const auto begin = [](ConstElements memory) {
    return static_cast<const std::byte*>(memory.data);
  };
  const auto end = [&](ConstElements memory) {
    return begin(memory) + memory.count * numeric::ElementBytes(Numeric(memory.type));
  };
  const std::less<> before;
  if (before(begin(gradients), end(parameters)) && before(begin(parameters), end(gradients)))
    return Invalid(fmt::format("{}: gradients and parameters overlap", place));
  return Status();
}

Status CheckNoOverlap(const std::string& place, const KeyDefinition& key, ConstElements gradients,
                      ConstElements parameters) {
  if (gradients.count == 0 || parameters.count == 0) return Status();
  const auto begin = [](ConstElements memory) {
    return static_cast<const std::byte*>(memory.data);
  };
  const bool same_type = gradients.type == parameters.type;
  const std::uint64_t own_bytes =
      key.rank.value * key.part_elements() * numeric::ElementBytes(key.type);
  switch (key.parts.movement) {
    case KeyMovement::kGather:
    case KeyMovement::kGatherToOne:
      if (begin(gradients) == begin(parameters) + own_bytes) return Status();
      break;
    case KeyMovement::kScatter:
      if (begin(parameters) == begin(gradients) + own_bytes) return Status();
      break;
    case KeyMovement::kReduceScatter:
      if (same_type && begin(parameters) == begin(gradients) + own_bytes) return Status();
      break;
    case KeyMovement::kAllReduce:
      if (same_type && begin(parameters) == begin(gradients)) return Status();
      break;
    case KeyMovement::kAllToAll: break;
  }
  return CheckNoOverlap(place, gradients, parameters);
}

}  // namespace phub::client
