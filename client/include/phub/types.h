// What keys are made of: element types, views of elements, operations and optimizers. Part of the
// public header phub/client.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace phub {

// Element types. Halves are kept by their bits; arithmetic on them is the daemon's.
enum class ElementType : std::uint8_t {
  kF32 = 1,
  kF16 = 2,   // IEEE 754 binary16
  kBf16 = 3,  // the upper half of a binary32
  kF64 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
};
inline constexpr ElementType f32 = ElementType::kF32;
inline constexpr ElementType f16 = ElementType::kF16;
inline constexpr ElementType bf16 = ElementType::kBf16;
inline constexpr ElementType f64 = ElementType::kF64;
inline constexpr ElementType i32 = ElementType::kI32;
inline constexpr ElementType i64 = ElementType::kI64;
inline constexpr ElementType u8 = ElementType::kU8;

struct Float16 {
  std::uint16_t bits = 0;
};
struct Bfloat16 {
  std::uint16_t bits = 0;
};

template <typename T>
inline constexpr ElementType kElementTypeOf = ElementType{};  // no element
template <> inline constexpr ElementType kElementTypeOf<float> = f32;
template <> inline constexpr ElementType kElementTypeOf<Float16> = f16;
template <> inline constexpr ElementType kElementTypeOf<Bfloat16> = bf16;
template <> inline constexpr ElementType kElementTypeOf<double> = f64;
template <> inline constexpr ElementType kElementTypeOf<std::int32_t> = i32;
template <> inline constexpr ElementType kElementTypeOf<std::int64_t> = i64;
template <> inline constexpr ElementType kElementTypeOf<std::uint8_t> = u8;
template <typename T>
concept Element = kElementTypeOf<T> != ElementType{};

// Views of elements whose type is known at run time. They convert from spans, vectors and arrays.
struct Elements {
  void* data = nullptr;
  std::uint64_t count = 0;
  ElementType type = f32;

  Elements() = default;
  Elements(void* data_in, std::uint64_t count_in, ElementType type_in)
      : data(data_in), count(count_in), type(type_in) {}
  template <Element T>
  Elements(std::span<T> elements)  // NOLINT: implicit
      : Elements(elements.data(), elements.size(), kElementTypeOf<T>) {}
  template <Element T>
  Elements(std::vector<T>& elements)  // NOLINT: implicit
      : Elements(elements.data(), elements.size(), kElementTypeOf<T>) {}
  // Typed again; empty if T is another type.
  template <Element T>
  std::span<T> As() const {
    if (type != kElementTypeOf<T>) return {};
    return {static_cast<T*>(data), static_cast<std::size_t>(count)};
  }
};
struct ConstElements {
  const void* data = nullptr;
  std::uint64_t count = 0;
  ElementType type = f32;

  ConstElements() = default;
  ConstElements(const void* data_in, std::uint64_t count_in, ElementType type_in)
      : data(data_in), count(count_in), type(type_in) {}
  ConstElements(const Elements& elements)  // NOLINT: implicit
      : ConstElements(elements.data, elements.count, elements.type) {}
  template <Element T>
  ConstElements(std::span<const T> elements)  // NOLINT: implicit
      : ConstElements(elements.data(), elements.size(), kElementTypeOf<T>) {}
  template <Element T>
  ConstElements(std::span<T> elements)  // NOLINT: implicit
      : ConstElements(elements.data(), elements.size(), kElementTypeOf<T>) {}
  template <Element T>
  ConstElements(const std::vector<T>& elements)  // NOLINT: implicit
      : ConstElements(elements.data(), elements.size(), kElementTypeOf<T>) {}
  template <Element T>
  std::span<const T> As() const {
    if (type != kElementTypeOf<T>) return {};
    return {static_cast<const T*>(data), static_cast<std::size_t>(count)};
  }
};

// How the ranks' gradients become one.
enum class Operation : std::uint8_t {
  kDefault = 0,  // kMean with an optimizer, kSum without
  kSum = 1,      // left fold in rank order; integers wrap
  kMean = 2,     // the sum, divided once by world_size; not for integers
  kMin = 3,      // any NaN gives NaN; -0 < +0
  kMax = 4,
  kProduct = 5,  // left fold in rank order
};

// What the daemon does with the combined gradient g: torch.optim's definitions. Every one but None
// needs a floating-point key. clip_value c > 0 clamps g to [-c, c] before anything else. State and
// updates are computed in f32, for f64 keys in f64.
struct None {};  // nothing: parameters() become g itself, so a round is an all-reduce
struct Sgd {     // p -= learning_rate * (g + weight_decay * p)
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
struct Momentum {  // b = momentum * b + (1 - dampening) * (g + weight_decay * p), the first time
  double learning_rate = 0.0;  // without the factors;  p -= learning_rate * b
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
struct Nesterov {  // b as in Momentum without dampening;  p -= learning_rate * (g + momentum * b)
  double learning_rate = 0.0;
  double momentum = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
struct Adam {  // Kingma and Ba 2015; weight_decay is added to g
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
struct AdamW {  // Loshchilov and Hutter 2019; weight_decay shrinks p
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
  double clip_value = 0.0;
};
struct Adagrad {  // Duchi, Hazan and Singer 2011
  double learning_rate = 1e-2;
  double learning_rate_decay = 0.0;
  double weight_decay = 0.0;
  double initial_accumulator = 0.0;  // fixed when the key is added
  double epsilon = 1e-10;
  double clip_value = 0.0;
};
using Optimizer = std::variant<None, Sgd, Momentum, Nesterov, Adam, AdamW, Adagrad>;

}  // namespace phub
