// The optimizers that there are, and their formulas. The definitions are those of torch.optim (SGD,
// Adam, AdamW, Adagrad of PyTorch 1.13, one tensor at a time, not fused), in its order of
// operations. optimizer_table.h has the rest of what is known of each; common/simd computes.
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

namespace phub::optimizer {

// The values are those of phub.v1.OptimizerKind, the places in the public phub::Optimizer and the
// rows of the table.
enum class Optimizer : std::uint8_t {
  kNone,  // the combined gradient is the new version
  kSgd,
  kMomentum,
  kNesterov,
  kAdam,
  kAdamW,
  kAdagrad,
};

// Arrays of state that an optimizer keeps per key, each of as many elements as the key, in the
// accumulation type.
inline constexpr std::size_t kStatesMax = 2;

}  // namespace phub::optimizer
