#include "common/simd/optimizers.h"

#include <cmath>

#include "common/base/check.h"
#include "common/simd/coefficients.h"

namespace phub::simd {
namespace {

// A value in two doubles, low far below high's last bit: about 106 bits.
struct DoubleDouble {
  double high;
  double low;
};

// high + low == a, in two halves of at most 26 bits each, whose products are exact (Veltkamp).
DoubleDouble Split(double a) {
  const double scaled = 0x1.0000002p27 * a;  // 2^27 + 1
  const double high = scaled - (scaled - a);
  return {high, a - high};
}

// Dekker's product: high is the rounded a.high * b.high, low what that rounding lost and the cross
// terms. Plain multiplications and additions only, so that no library or machine has a say.
DoubleDouble Multiply(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  const DoubleDouble x = Split(a.high);
  const DoubleDouble y = Split(b.high);
  const double lost =
      ((x.high * y.high - product) + x.high * y.low + x.low * y.high) + x.low * y.low;
  const double low = lost + (a.high * b.low + a.low * b.high);
  const double high = product + low;
  return {high, low - (high - product)};
}

// All chunks of an iteration ask for the same power, one after another.
struct LastPower {
  double base = 1.0;
  std::uint64_t exponent = 0;
  double power = 1.0;
  double Of(double new_base, std::uint64_t new_exponent) {
    if (base != new_base || exponent != new_exponent) {
      *this = {new_base, new_exponent, PowerOf(new_base, new_exponent)};
    }
    return power;
  }
};

void SetAdam(const OptimizerArguments& arguments, Coefficients& coefficients) {
  thread_local LastPower last1;
  thread_local LastPower last2;
  const double correction1 = 1.0 - last1.Of(arguments.beta1, arguments.step);
  const double correction2 = 1.0 - last2.Of(arguments.beta2, arguments.step);
  coefficients.step_size = arguments.learning_rate / correction1;
  coefficients.decay = arguments.beta1;
  coefficients.gradient_weight = 1.0 - arguments.beta1;
  coefficients.square_decay = arguments.beta2;
  coefficients.square_weight = 1.0 - arguments.beta2;
  coefficients.square_correction = std::sqrt(correction2);  // IEEE 754's, exact
}

}  // namespace

const char* ToString(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::kNone: return "none";
    case Optimizer::kSgd: return "sgd";
    case Optimizer::kMomentum: return "momentum";
    case Optimizer::kNesterov: return "nesterov";
    case Optimizer::kAdam: return "adam";
    case Optimizer::kAdamW: return "adamw";
    case Optimizer::kAdagrad: return "adagrad";
  }
  return "unknown";
}

const char* StateName(Optimizer optimizer, std::size_t index) {
  PHUB_CHECK(index < StateCount(optimizer), "optimizer={} index={}", ToString(optimizer), index);
  switch (optimizer) {
    case Optimizer::kMomentum:
    case Optimizer::kNesterov: return "momentum";
    case Optimizer::kAdam:
    case Optimizer::kAdamW: return index == 0 ? "first_moment" : "second_moment";
    case Optimizer::kAdagrad: return "sum_of_squares";
    default: return "";
  }
}

double PowerOf(double base, std::uint64_t exponent) {
  DoubleDouble result{1.0, 0.0};
  DoubleDouble square{base, 0.0};
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = Multiply(result, square);
    square = Multiply(square, square);
  }
  return result.high;
}

Coefficients CoefficientsOf(Optimizer optimizer, const OptimizerArguments& arguments) {
  PHUB_CHECK(arguments.step >= 1, "optimizer={}", ToString(optimizer));
  Coefficients coefficients;
  coefficients.weight_decay = arguments.weight_decay;
  coefficients.step_size = arguments.learning_rate;
  coefficients.epsilon = arguments.epsilon;
  coefficients.first_step = arguments.step == 1;
  switch (optimizer) {
    case Optimizer::kNone:
    case Optimizer::kSgd: break;
    case Optimizer::kMomentum:
    case Optimizer::kNesterov:
      coefficients.decay = arguments.momentum;
      coefficients.gradient_weight = 1.0 - arguments.dampening;
      break;
    case Optimizer::kAdam: SetAdam(arguments, coefficients); break;
    case Optimizer::kAdamW:
      SetAdam(arguments, coefficients);
      coefficients.weight_decay = 0.0;
      coefficients.parameter_scale = 1.0 - arguments.learning_rate * arguments.weight_decay;
      break;
    case Optimizer::kAdagrad:
      coefficients.step_size =
          arguments.learning_rate /
          (1.0 + static_cast<double>(arguments.step - 1) * arguments.learning_rate_decay);
      coefficients.initial_state = arguments.initial_accumulator;
      break;
  }
  return coefficients;
}

}  // namespace phub::simd
