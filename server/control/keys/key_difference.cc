#include <algorithm>
#include <utility>

#include "common/base/printable.h"
#include "common/base/same_bits.h"
#include "common/optimizer/message_fields.h"
#include "common/optimizer/optimizer_table.h"
#include "server/control/keys/key_encoding.h"
#include "server/control/keys/key_specs.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

std::string TypeName(int type) {
  if (type < 1 || type > numeric::kElementTypeMax) return fmt::format("number {}", type);
  return numeric::ToString(static_cast<ElementType>(type));
}

std::string OptimizerName(v1::OptimizerKind kind) {
  if (kind == v1::OPTIMIZER_NONE) return "no optimizer";
  const optimizer::Descriptor* const row = optimizer::FindDescriptor(kind);
  return row == nullptr ? fmt::format("optimizer number {}", static_cast<int>(kind)) : row->name;
}

std::string OperationName(v1::Operation operation) {
  switch (operation) {
    case v1::OPERATION_SUM: return "operation sum";
    case v1::OPERATION_MEAN: return "operation mean";
    case v1::OPERATION_MIN: return "operation min";
    case v1::OPERATION_MAX: return "operation max";
    case v1::OPERATION_PRODUCT: return "operation product";
    case v1::OPERATION_BITWISE_AND: return "operation bitwise and";
    case v1::OPERATION_BITWISE_OR: return "operation bitwise or";
    case v1::OPERATION_BITWISE_XOR: return "operation bitwise xor";
    default: return fmt::format("operation number {}", static_cast<int>(operation));
  }
}

std::string MovementName(const v1::KeySpec& key) {
  if (key.movement() < 0 || key.movement() > kMovementMax) {
    return fmt::format("movement number {}", static_cast<int>(key.movement()));
  }
  return fmt::format("movement {}", ToString(MovementOf(key)));
}

// Clients that know no classes send none.
v1::PriorityClass PriorityClassOf(const v1::KeySpec& key) {
  return key.priority_class() == v1::PRIORITY_CLASS_UNSPECIFIED ? v1::PRIORITY_CLASS_DATA
                                                                : key.priority_class();
}

std::string PriorityClassName(const v1::KeySpec& key) {
  switch (PriorityClassOf(key)) {
    case v1::PRIORITY_CLASS_DATA: return "priority class data";
    case v1::PRIORITY_CLASS_PIPELINE: return "priority class pipeline";
    case v1::PRIORITY_CLASS_TENSOR: return "priority class tensor";
    default: return fmt::format("priority class number {}", static_cast<int>(key.priority_class()));
  }
}

// "3 tensors", or "tensor 1 of 64 elements" if `other` has as many.
std::string DescribeTensors(const v1::KeySpec& own, const v1::KeySpec& other) {
  if (own.tensors().empty()) return "one tensor";
  if (own.tensors_size() != other.tensors_size()) {
    return fmt::format("{} tensors", own.tensors_size());
  }
  const auto first = std::ranges::mismatch(own.tensors(), other.tensors()).in1;
  return fmt::format("tensor {} of {} elements", first - own.tensors().begin(), *first);
}

// Describes the first difference of two keys in two phrases. Both are empty if the keys are equal.
struct Phrases {
  std::string first;
  std::string other;
};
Phrases Compare(const v1::KeySpec& a, const v1::KeySpec& b) {
  if (a.name() != b.name() || a.element_count() != b.element_count()) {
    const std::string other = fmt::format("{} elements", b.element_count());
    return {fmt::format("\"{}\" with {} elements", a.name(), a.element_count()),
            a.name() == b.name()
                ? other
                : fmt::format("\"{}\" with {}", Printable(b.name(), kNameBytesMax), other)};
  }
  const auto phrase = [&](const std::string& x, const std::string& y) {
    return Phrases{fmt::format("\"{}\" with {}", a.name(), x), y};
  };
  if (!std::ranges::equal(a.tensors(), b.tensors())) {
    return phrase(DescribeTensors(a, b), DescribeTensors(b, a));
  }
  const auto types = [&](const char* what, int x, int y) {
    return phrase(fmt::format("{} {}", what, TypeName(x)), fmt::format("{} {}", what, TypeName(y)));
  };
  if (a.type() != b.type()) return types("type", a.type(), b.type());
  if (a.gradient_type() != b.gradient_type()) {
    return types("gradient_type", a.gradient_type(), b.gradient_type());
  }
  if (a.parameter_type() != b.parameter_type()) {
    return types("parameter_type", a.parameter_type(), b.parameter_type());
  }
  if (a.encoding() != b.encoding() || a.kept_millionths() != b.kept_millionths()) {
    return phrase(DescribeEncoding(a), DescribeEncoding(b));
  }
  if (a.movement() != b.movement()) {
    return phrase(MovementName(a), MovementName(b));
  }
  if (a.collective() != b.collective()) {
    const auto name = [](const v1::KeySpec& key) {
      return key.collective() ? "collective rounds" : "rounds in iterations";
    };
    return phrase(name(a), name(b));
  }
  if (a.pooled() != b.pooled()) {
    const auto name = [](const v1::KeySpec& key) {
      return key.pooled() ? "rounds of a pool" : "rounds of one type and length";
    };
    return phrase(name(a), name(b));
  }
  if (PriorityClassOf(a) != PriorityClassOf(b)) {
    return phrase(PriorityClassName(a), PriorityClassName(b));
  }
  if (a.root() != b.root()) {
    return phrase(fmt::format("root {}", a.root()), fmt::format("root {}", b.root()));
  }
  if (a.operation() != b.operation()) {
    return phrase(OperationName(a.operation()), OperationName(b.operation()));
  }
  if (a.optimizer() != b.optimizer()) {
    return phrase(OptimizerName(a.optimizer()), OptimizerName(b.optimizer()));
  }
  const wire::HyperParameters a_values = optimizer::FromMessage(a.hyper_parameters());
  const wire::HyperParameters b_values = optimizer::FromMessage(b.hyper_parameters());
  for (const optimizer::Field& field : optimizer::kFields) {
    const double x = a_values.*field.value;
    const double y = b_values.*field.value;
    if (SameBits(x, y)) continue;
    return phrase(fmt::format("{} {}", field.name, x), fmt::format("{} {}", field.name, y));
  }
  return {};
}

}  // namespace

KeyDifference CompareKeys(const KeyList& first, const KeySpecs& keys) {
  const std::size_t count = static_cast<std::size_t>(keys.size());
  for (std::size_t i = 0; i < std::min(count, first.size()); ++i) {
    Phrases phrases = Compare(first[i], keys[static_cast<int>(i)]);
    if (phrases.first.empty()) continue;
    return {true, i, std::move(phrases.first), std::move(phrases.other), count, {}};
  }
  if (count == first.size()) return {};
  std::string extra =
      count < first.size() ? first[count].name() : keys[static_cast<int>(first.size())].name();
  return {true, 0, {}, {}, count, Printable(extra, kNameBytesMax)};
}

std::string Describe(const KeyDifference& difference, const Job& job, const BatchRecord& record,
                     std::uint32_t batch, Rank rank) {
  const std::string first = DescribeRankBriefly(job, record.first);
  const std::string other = DescribeRankBriefly(job, rank);
  if (difference.first.empty()) {
    return fmt::format("batch {}: {} added {} key{}, but {} added {}; only {} added \"{}\"", batch,
                       first, record.keys->size(), record.keys->size() == 1 ? "" : "s", other,
                       difference.count, record.keys->size() > difference.count ? first : other,
                       difference.extra);
  }
  const std::size_t before = record.first_key < kGroupKeysFirst ? record.first_key : 0;
  return fmt::format("key {}: {} has {}, but {} has {}", before + difference.key, first,
                     difference.first, other, difference.other);
}

}  // namespace phub::server
