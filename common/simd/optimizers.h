// What a round does with the ranks' gradients: how they are combined, and which optimizer turns
// the result into new parameters. Plain data; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phub::simd {

enum class Reduction : std::uint8_t { kSum, kMean, kMin, kMax, kProduct };
enum class Optimizer : std::uint8_t { kNone, kSgd, kMomentum, kNesterov, kAdam, kAdamW, kAdagrad };
const char* ToString(Reduction reduction);  // "sum", ...
const char* ToString(Optimizer optimizer);  // "none", "sgd", ...

// Arrays of optimizer state per key, in the accumulation type.
inline constexpr std::size_t kStatesMax = 2;
constexpr std::size_t StateCount(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kNone:
    case Optimizer::kSgd: return 0;
    case Optimizer::kMomentum:
    case Optimizer::kNesterov:
    case Optimizer::kAdagrad: return 1;
    case Optimizer::kAdam:
    case Optimizer::kAdamW: return 2;
  }
  return 0;
}

}  // namespace phub::simd
