// Element types, views of elements, operations and optimizers. Part of the public header
// phub/client.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace phub {

// Element types. The client handles f16 and bf16 as bits; only the daemon computes with them.
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
inline constexpr ElementType kElementTypeOf = ElementType{};  // not an element type
template <>
inline constexpr ElementType kElementTypeOf<float> = f32;
template <>
inline constexpr ElementType kElementTypeOf<Float16> = f16;
template <>
inline constexpr ElementType kElementTypeOf<Bfloat16> = bf16;
template <>
inline constexpr ElementType kElementTypeOf<double> = f64;
template <>
inline constexpr ElementType kElementTypeOf<std::int32_t> = i32;
template <>
inline constexpr ElementType kElementTypeOf<std::int64_t> = i64;
template <>
inline constexpr ElementType kElementTypeOf<std::uint8_t> = u8;
template <typename T>
concept Element = kElementTypeOf<T>
!= ElementType{};

// Views of elements whose type is known at run time. They convert from spans and vectors.
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
  // A typed view; empty if T is another type.
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

// How the ranks' gradients are combined.
enum class Operation : std::uint8_t {
  kDefault = 0,  // kMean with an optimizer, kSum without
  kSum = 1,      // left fold in rank order; integers wrap
  kMean = 2,     // the sum divided by world_size; not for integers
  kMin = 3,      // any NaN gives NaN; -0 < +0
  kMax = 4,
  kProduct = 5,     // left fold in rank order
  kBitwiseAnd = 6,  // these three: only for integers
  kBitwiseOr = 7,
  kBitwiseXor = 8,
};

// In which order a rank sends and a daemon answers: chunks of a higher class first, whenever their
// rounds were started. While others wait, one of 20 is of the lowest class. The names are those of
// forms of parallel training: a step waits for exchanges of tensor parallelism at once, and for
// those of data parallelism at its end. Ranks state the same class. Results do not depend on it.
enum class PriorityClass : std::uint8_t {
  kData = 1,      // the default
  kPipeline = 2,  // before kData
  kTensor = 3,    // before both
};

// Which elements of a key travel in a round. Except with kAllReduce, the key consists of world_size
// equal parts, one after the other. All but the two reductions move elements as bytes: NaNs and
// denormal numbers of any type arrive unchanged.
enum class Movement : std::uint8_t {
  kAllReduce = 0,  // every rank pushes all elements and receives all
  // Rank r pushes part r; every rank receives all parts.
  kGather = 1,
  // Every rank pushes all elements, and they are combined as by kAllReduce; rank r receives part r.
  kReduceScatter = 2,
  // Every rank pushes all elements; rank r receives part r of every rank, in the order of the
  // ranks.
  kAllToAll = 3,
  // The rank KeyOptions::root pushes all elements; rank r receives part r.
  kScatter = 4,
  // Rank r pushes part r; the rank KeyOptions::root receives all parts.
  kGatherToOne = 5,
};

// Optimizers, defined as in torch.optim; g is the combined gradient. All except None need a
// floating-point key. clip_value c > 0 first clamps g to [-c, c]. State and updates are computed in
// f32, or in f64 for f64 keys.
struct None {};  // no optimizer: parameters() receive g, so a round is an all-reduce
struct Sgd {     // p -= learning_rate * (g + weight_decay * p)
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
// d = g + weight_decay * p
// b = momentum * b + (1 - dampening) * d; in the first round b = d
// p -= learning_rate * b
struct Momentum {
  double learning_rate = 0.0;
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
  double initial_accumulator = 0.0;  // cannot change after the key was added
  double epsilon = 1e-10;
  double clip_value = 0.0;
};
struct RmsProp {  // Hinton 2012; alpha is the decay of the average of squares
  double learning_rate = 1e-2;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
struct RmsPropMomentum {  // RMSprop of torch.optim with momentum
  double learning_rate = 1e-2;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double momentum = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
// Graves 2013, without momentum: divides by an estimate of the gradient's standard deviation. As in
// torch.optim, rounding can make the estimated variance of a constant gradient negative, and the
// result NaN.
struct RmsPropCentered {
  double learning_rate = 1e-2;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double clip_value = 0.0;
};
using Optimizer = std::variant<None, Sgd, Momentum, Nesterov, Adam, AdamW, Adagrad, RmsProp,
                               RmsPropMomentum, RmsPropCentered>;

struct CheckpointOptions {
  // False: the directory will be deleted soon. Then errors, other ranks and `phubctl job get` do
  // not name it as a checkpoint from which the job can start again.
  bool lasts = true;
};

}  // namespace phub
