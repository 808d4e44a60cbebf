// The initial content of a workload's arrays, and the comparison with the serial reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "bench/kernels/workload.h"
#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"
#include "common/simd/encode.h"
#include "tests/support/encoding_reference.h"
#include "tests/support/fixed_sum_reference.h"
#include "tests/support/simd_reference.h"

namespace phub::bench {
namespace {

namespace reference = simd::reference;

// In larger arrays about this many elements are compared. The distance between compared elements is
// odd, so that every place within a vector is covered.
constexpr std::size_t kComparedMax = 1 << 17;

// Pseudo-random bits that depend only on the array and the index (the finalizer of SplitMix64).
std::uint64_t BitsOf(std::uint64_t array, std::uint64_t index) {
  std::uint64_t bits = (array << 40) + index + 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// Signed values over several binades, without zeros, denormals or NaNs. Nearly every operation
// rounds, different orders of additions give different bits, and all elements take the machine
// equally long.
float FloatOf(std::uint64_t bits) {
  const auto whole = static_cast<std::int32_t>(bits >> 32);
  return static_cast<float>(whole) * 0x1p-31f + 0x1p-20f;
}
double DoubleOf(std::uint64_t bits) {
  return static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63 + 0x1p-40;
}
std::uint16_t F16Of(std::uint64_t bits) {
  return static_cast<std::uint16_t>((bits & 0x83ff) | ((10 + ((bits >> 16) & 3)) << 10));
}
std::uint16_t Bf16Of(std::uint64_t bits) {
  return static_cast<std::uint16_t>((bits & 0x807f) | ((122 + ((bits >> 16) & 3)) << 7));
}

template <class T, class Value>
void FillWith(std::byte* data, std::size_t count, const Value& value) {
  for (std::size_t i = 0; i < count; ++i) reference::Put<T>(data, i, value(i));
}

template <class T>
T InitialOf(std::uint64_t bits) {
  if constexpr (std::is_same_v<T, float>) return FloatOf(bits);
  if constexpr (std::is_same_v<T, double>) return DoubleOf(bits);
  return static_cast<T>(bits);
}

std::string Difference(const char* what, std::size_t element) {
  return std::string(what) + " of element " + std::to_string(element) +
         " differs from the serial reference";
}

}  // namespace

// Second moments are means of squares, so they must not be negative.
void Workload::Fill(const Array& array) {
  const auto id = static_cast<std::uint64_t>(&array - arrays_.data());
  const std::size_t count = array.role == Role::kInput ? input_element_count_ : element_count_;
  const bool is_state = array.role == Role::kState;
  switch (array.type) {
    case ElementType::kF32:
      return FillWith<float>(array.data, count, [&](std::size_t i) {
        const float value = FloatOf(BitsOf(id, i));
        return is_state ? std::fabs(value) : value;
      });
    case ElementType::kF64:
      return FillWith<double>(array.data, count,
                              [&](std::size_t i) { return DoubleOf(BitsOf(id, i)); });
    case ElementType::kF16:
      return FillWith<std::uint16_t>(array.data, count,
                                     [&](std::size_t i) { return F16Of(BitsOf(id, i)); });
    case ElementType::kBf16:
      return FillWith<std::uint16_t>(array.data, count,
                                     [&](std::size_t i) { return Bf16Of(BitsOf(id, i)); });
    case ElementType::kI32:
    case ElementType::kI64:
    case ElementType::kU8:
      return FillWith<std::uint64_t>(array.data, count * numeric::ElementBytes(array.type) / 8,
                                     [&](std::size_t i) { return BitsOf(id, i); });
  }
}

// A rank's payloads, of gradients like those of Fill().
void Workload::FillEncoded(const Array& array) {
  const auto id = static_cast<std::uint64_t>(&array - arrays_.data());
  std::vector<float> values(piece_elements_);
  simd::EncodeScratch scratch;
  for (std::size_t begin = 0; begin < input_element_count_; begin += piece_elements_) {
    for (std::size_t i = 0; i < piece_elements_; ++i) values[i] = FloatOf(BitsOf(id, begin + i));
    simd::Encode(case_.encoding, values.data(), nullptr, piece_elements_, begin + 1,
                 InputOf(array, {0, begin, piece_elements_}), scratch);
  }
}

std::vector<const std::byte*> Workload::RanksOf(const Piece& piece) const {
  std::vector<const std::byte*> inputs;
  for (const Array& array : arrays_) {
    if (array.role == Role::kInput) inputs.push_back(InputOf(array, piece));
  }
  return inputs;
}

template <class T>
std::string Workload::CompareElement(const Piece& piece,
                                     const std::vector<const std::byte*>& inputs,
                                     std::size_t offset) const {
  const std::size_t i = piece.begin + offset;
  T parameter{};
  std::array<T, simd::kStatesMax> state{};
  std::size_t states = 0;
  for (const Array& array : arrays_) {
    const auto id = static_cast<std::uint64_t>(&array - arrays_.data());
    if (array.role == Role::kParameters) parameter = InitialOf<T>(BitsOf(id, i));
    if constexpr (std::is_floating_point_v<T>) {
      if (array.role == Role::kState) state[states++] = std::fabs(InitialOf<T>(BitsOf(id, i)));
    }
  }
  const T expected = reference::RoundOf<T>(round_, inputs, offset, parameter, &state[0], &state[1]);
  states = 0;
  for (const Array& array : arrays_) {
    std::array<std::byte, 8> bytes{};
    const char* what = "output";
    if (array.role == Role::kInput) continue;
    if (array.role == Role::kState) {
      what = "state";
      reference::Put<T>(bytes.data(), 0, state[states++]);
    } else {
      if (array.role == Role::kParameters) what = "parameter";
      reference::Store<T>(array.type, bytes.data(), 0, expected);
    }
    if (std::memcmp(bytes.data(), array.At(i), numeric::ElementBytes(array.type)) != 0) {
      return Difference(what, i);
    }
  }
  return "";
}

// Compares all elements of each piece, and in large arrays of every n-th piece.
std::string Workload::CompareEncoded() const {
  const std::size_t step = 1 + element_count_ / kComparedMax;
  for (std::size_t number = 0; number < pieces_.size(); number += step) {
    const Piece& piece = pieces_[number];
    const std::vector<float> sum =
        reference::SumOfEncoded(case_.encoding, RanksOf(piece), piece.count);
    const std::vector<const std::byte*> inputs{reinterpret_cast<const std::byte*>(sum.data())};
    for (std::size_t offset = 0; offset < piece.count; ++offset) {
      std::string difference = CompareElement<float>(piece, inputs, offset);
      if (!difference.empty()) return difference;
    }
  }
  return "";
}

// Compares the first block of each piece, and in large pieces some others.
std::string Workload::CompareFixedSums() const {
  constexpr std::size_t kBlock = aggregation::kFixedBlockDefault;
  const std::size_t step = (1 + element_count_ / kComparedMax) * kBlock;
  for (const Piece& piece : pieces_) {
    for (std::size_t offset = 0; offset < piece.count; offset += step) {
      const std::size_t size = std::min(kBlock, piece.count - offset);
      std::vector<std::vector<float>> inputs;
      for (const Array& array : arrays_) {
        if (array.role != Role::kInput) continue;
        std::vector<float>& values = inputs.emplace_back(size);
        for (std::size_t i = 0; i < size; ++i) {
          values[i] = reference::Load<float>(array.type, array.At(piece.input_begin), offset + i);
        }
      }
      const std::vector<float> sum = oracle::SumInFixedPoint(inputs, kBlock);
      const std::size_t begin = piece.begin + offset;
      if (std::memcmp(sum.data(), arrays_.back().At(begin), size * sizeof(float)) != 0) {
        return Difference("output in the block", begin);
      }
    }
  }
  return "";
}

template <class T>
std::string Workload::Compare() const {
  for (const Piece& piece : pieces_) {
    const std::size_t step = element_count_ > kComparedMax ? element_count_ / kComparedMax | 1 : 1;
    const std::vector<const std::byte*> inputs = RanksOf(piece);
    for (std::size_t offset = 0; offset < piece.count; offset += step) {
      std::string difference = CompareElement<T>(piece, inputs, offset);
      if (!difference.empty()) return difference;
    }
    std::string difference = CompareElement<T>(piece, inputs, piece.count - 1);
    if (!difference.empty()) return difference;
  }
  return "";
}

std::string Workload::Verify(bool separate) {
  for (const Array& array : arrays_) {
    case_.encoded() && array.role == Role::kInput ? FillEncoded(array) : Fill(array);
  }
  separate ? RunSeparately() : Run();
  if (case_.operation == Operation::kSumFixed) return CompareFixedSums();
  if (case_.encoded()) return CompareEncoded();
  switch (numeric::AccumulationType(case_.wire)) {
    case ElementType::kF64: return Compare<double>();
    case ElementType::kI32: return Compare<std::int32_t>();
    case ElementType::kI64: return Compare<std::int64_t>();
    case ElementType::kU8: return Compare<std::uint8_t>();
    default: return Compare<float>();
  }
}

}  // namespace phub::bench
