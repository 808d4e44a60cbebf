#include "bench/rank/values.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace phub::bench {
namespace {

std::size_t ClassOf(std::uint64_t index) {
  return (static_cast<std::uint32_t>(index) * 2654435761u >> 8) % kClasses;
}

// -8 to 8, so that sums of up to 16 ranks are exact even in bf16, whose significand has 8 bits.
float Gradient(std::uint32_t rank, std::size_t element_class) {
  return static_cast<float>((element_class * 7 + rank * 5) % 17) - 8.0F;
}

std::uint16_t Bf16Bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float FromBf16Bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

__extension__ using Half = _Float16;

// Converts to the stored type and back.
template <typename Bits>
Bits Stored(Type type, float value) {
  if constexpr (sizeof(Bits) == sizeof(float)) {
    return std::bit_cast<Bits>(value);
  } else {
    if (type == Type::kBf16) return Bf16Bits(value);
    return std::bit_cast<Bits>(static_cast<Half>(value));
  }
}
template <typename Bits>
float Loaded(Type type, Bits bits) {
  if constexpr (sizeof(Bits) == sizeof(float)) {
    return std::bit_cast<float>(bits);
  } else {
    if (type == Type::kBf16) return FromBf16Bits(bits);
    return static_cast<float>(std::bit_cast<Half>(bits));
  }
}

template <typename Bits, typename Table>
std::array<Bits, kClasses> StoredTable(Type type, const Table& values) {
  std::array<Bits, kClasses> stored{};
  for (std::size_t i = 0; i < kClasses; ++i) stored[i] = Stored<Bits>(type, values[i]);
  return stored;
}

template <typename Bits, typename Table>
void Fill(Type type, const Table& values, std::uint64_t first_index, std::uint64_t count,
          void* out) {
  const auto stored = StoredTable<Bits>(type, values);
  auto* elements = static_cast<Bits*>(out);
  for (std::uint64_t i = 0; i < count; ++i) elements[i] = stored[ClassOf(first_index + i)];
}

template <typename Bits, typename Table>
std::string Compare(Type type, const Table& values, std::uint64_t first_index, std::uint64_t count,
                    const void* results, double tolerance) {
  const auto expected = StoredTable<Bits>(type, values);
  const auto* elements = static_cast<const Bits*>(results);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Bits wanted = expected[ClassOf(first_index + i)];
    if (elements[i] == wanted) continue;
    const double got = static_cast<double>(Loaded<Bits>(type, elements[i]));
    const double want = static_cast<double>(Loaded<Bits>(type, wanted));
    // Negated, so that a NaN counts as a difference.
    if (tolerance > 0 && !(std::fabs(got - want) > tolerance * std::fmax(1.0, std::fabs(want))) &&
        !std::isnan(got))
      continue;
    return "element " + std::to_string(first_index + i) + " is " + std::to_string(got) +
           ", expected " + std::to_string(want);
  }
  return "";
}

}  // namespace

std::size_t ElementBytes(Type type) { return type == Type::kF32 ? 4 : 2; }

Values::Values(std::uint32_t world, Type type, Work work)
    : world_(world), type_(type), work_(work) {
  for (std::size_t i = 0; i < kClasses; ++i) {
    initial_[i] = static_cast<float>(i * 11 % 13) - 6.0F;
    sums_[i] = Gradient(0, i);
    for (std::uint32_t rank = 1; rank < world; ++rank) sums_[i] += Gradient(rank, i);
  }
  parameters_ = initial_;
}

void Values::FillGradients(std::uint32_t rank, std::uint64_t first_index, std::uint64_t count,
                           void* out) const {
  Table gradients;
  for (std::size_t i = 0; i < kClasses; ++i) gradients[i] = Gradient(rank, i);
  if (type_ == Type::kF32) return Fill<std::uint32_t>(type_, gradients, first_index, count, out);
  Fill<std::uint16_t>(type_, gradients, first_index, count, out);
}

void Values::FillInitial(std::uint64_t first_index, std::uint64_t count, void* out) const {
  Fill<std::uint32_t>(Type::kF32, initial_, first_index, count, out);
}

void Values::Advance() {
  const auto rate = static_cast<float>(kLearningRate);
  const auto momentum = static_cast<float>(kMomentum);
  for (std::size_t i = 0; i < kClasses; ++i) {
    if (work_ == Work::kAllreduce) {
      parameters_[i] = sums_[i];
      continue;
    }
    const float gradient = sums_[i] / static_cast<float>(world_);
    momentum_[i] = advanced_ ? momentum * momentum_[i] + gradient : gradient;
    parameters_[i] -= rate * momentum_[i];
  }
  advanced_ = true;
}

std::string Values::Difference(std::uint64_t first_index, std::uint64_t count, const void* results,
                               double tolerance) const {
  if (type_ == Type::kF32)
    return Compare<std::uint32_t>(type_, parameters_, first_index, count, results, tolerance);
  return Compare<std::uint16_t>(type_, parameters_, first_index, count, results, tolerance);
}

}  // namespace phub::bench
