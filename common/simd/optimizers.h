// The optimizers: which there are, what they keep, and what they are told. The definitions are
// those of torch.optim (SGD, Adam, AdamW, Adagrad of PyTorch 1.13, one tensor at a time, not
// fused), in its order of operations. Pure; any thread.
//
// g is the gradient, p the parameter, t the step (this update counted from 1). Lower-case names are
// OptimizerArguments. First, for all of them but AdamW: g = g + weight_decay * p, unless it is 0.
//   sgd       p = p - learning_rate * g
//   momentum  b = g if t is 1, else momentum * b + (1 - dampening) * g;  p = p - learning_rate * b
//   nesterov  b as for momentum;  p = p - learning_rate * (g + momentum * b)
//   adam      m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + ((1 - beta2) * g) * g
//             p = p - (learning_rate / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//   adamw     p = (1 - learning_rate * weight_decay) * p, then as adam
//   adagrad   s = s + g * g;  c = learning_rate / (1 + (t - 1) * learning_rate_decay)
//             p = p - (c * g) / (sqrt(s) + epsilon)
// What depends on arguments alone is computed in double and then rounded to the accumulation type;
// everything else is computed in the accumulation type, and every operation rounds on its own. On
// step 1 what the state held does not matter: b is set, m and v start from 0, s from
// initial_accumulator.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phub::simd {

enum class Optimizer : std::uint8_t {
  kNone,  // the combined gradient is the new version
  kSgd,
  kMomentum,
  kNesterov,
  kAdam,
  kAdamW,
  kAdagrad,
};
const char* ToString(Optimizer optimizer);  // "none", "sgd", "momentum", ...

// Arrays of state that an optimizer keeps per key, each of as many elements as the key, in the
// accumulation type.
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
// What saved state calls the array: "momentum"; "first_moment", "second_moment"; "sum_of_squares".
const char* StateName(Optimizer optimizer, std::size_t index);

// As the user wrote them. An optimizer ignores what its definition does not name. Any values are
// computed with, sensible or not.
struct OptimizerArguments {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;  // the combined gradient is clamped to [-clip_value, clip_value], if > 0
  double momentum = 0.0;
  double dampening = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double epsilon = 0.0;
  double learning_rate_decay = 0.0;
  double initial_accumulator = 0.0;
  std::uint64_t step = 1;
};

// base^exponent for 0 <= base <= 1, to the last bit or nearly so, and the same bits everywhere: a C
// library's pow promises neither.
double PowerOf(double base, std::uint64_t exponent);

}  // namespace phub::simd
