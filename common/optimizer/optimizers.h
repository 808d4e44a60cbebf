// The optimizers and their formulas. The definitions and the order of operations are those of
// torch.optim (SGD, Adam, AdamW, Adagrad, RMSprop of PyTorch 1.13, single tensor, not fused).
// optimizer_table.h describes each optimizer further; common/simd implements the formulas.
//
// g is the gradient, p the parameter, t the step, counted from 1. Names such as learning_rate are
// OptimizerArguments. First, for all except AdamW: g = g + weight_decay * p, if weight_decay != 0.
//   sgd       p = p - learning_rate * g
//   momentum  b = t == 1 ? g : momentum * b + (1 - dampening) * g;  p = p - learning_rate * b
//   nesterov  b as for momentum;  p = p - learning_rate * (g + momentum * b)
//   adam      m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + ((1 - beta2) * g) * g
//             p = p - (learning_rate / (1 - beta1^t) * m) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//   adamw     p = (1 - learning_rate * weight_decay) * p, then as adam
//   adagrad   s = s + g * g;  c = learning_rate / (1 + (t - 1) * learning_rate_decay)
//             p = p - (c * g) / (sqrt(s) + epsilon)
//   rmsprop   v = alpha * v + ((1 - alpha) * g) * g
//             p = p - (learning_rate * g) / (sqrt(v) + epsilon)
//   rmsprop_momentum  v as for rmsprop;  b = momentum * b + g / (sqrt(v) + epsilon)
//                     p = p - learning_rate * b
//   rmsprop_centered  v as for rmsprop;  a = alpha * a + (1 - alpha) * g
//                     p = p - (learning_rate * g) / (sqrt(v - a * a) + epsilon)
// Expressions of arguments only are computed in double and then rounded to the accumulation type.
// All other expressions are computed in the accumulation type, and every operation rounds
// separately. Step 1 ignores the old state: b of momentum and nesterov is set to g, s starts from
// initial_accumulator, and all other states start from 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phub::optimizer {

// The values equal those of phub.v1.OptimizerKind, the indices of the public variant
// phub::Optimizer and the rows of the table.
enum class Optimizer : std::uint8_t {
  kNone,  // the reduced gradient becomes the new version
  kSgd,
  kMomentum,
  kNesterov,
  kAdam,
  kAdamW,
  kAdagrad,
  kRmsProp,
  kRmsPropMomentum,
  kRmsPropCentered,
};

// The maximum number of state arrays that an optimizer keeps per key. Each has as many elements as
// the key, in the accumulation type.
inline constexpr std::size_t kStatesMax = 2;

}  // namespace phub::optimizer
