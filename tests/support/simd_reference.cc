#include "tests/support/simd_reference.h"

#include <algorithm>

#include "common/optimizer/power.h"

namespace phub::simd::reference {

using optimizer::PowerOf;

float WidenHalf(const HalfLayout& layout, std::uint16_t half) {
  const int fraction = half & ((1 << layout.fraction_bits) - 1);
  const int exponent_max = (1 << layout.exponent_bits) - 1;
  const int exponent = (half >> layout.fraction_bits) & exponent_max;
  const bool negative = (half & 0x8000) != 0;
  if (exponent == exponent_max) {  // infinity or NaN, whose payload moves to the top
    const std::uint32_t payload = static_cast<std::uint32_t>(fraction)
                                  << (23 - layout.fraction_bits);
    return std::bit_cast<float>((negative ? 0xff800000u : 0x7f800000u) | payload);
  }
  const int leading = exponent == 0 ? 0 : 1 << layout.fraction_bits;
  const int scale = (exponent == 0 ? 0 : exponent - 1) + layout.exponent_min - layout.fraction_bits;
  const double magnitude = std::ldexp(static_cast<double>(leading + fraction), scale);
  return static_cast<float>(negative ? -magnitude : magnitude);
}

std::uint16_t NarrowHalf(const HalfLayout& layout, float value) {
  const int exponent_max = (1 << layout.exponent_bits) - 1;
  const int infinity = exponent_max << layout.fraction_bits;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(infinity | (1 << (layout.fraction_bits - 1)));
  }
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0.0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  int exponent = std::max(std::ilogb(magnitude), layout.exponent_min);
  // In multiples of the unit in the last place; double represents the quotient exactly.
  double multiples = std::nearbyint(std::ldexp(magnitude, layout.fraction_bits - exponent));
  if (multiples == std::ldexp(1.0, layout.fraction_bits + 1)) {
    multiples /= 2.0;
    ++exponent;
  }
  // Numbers below the smallest normal one have no leading bit, and their biased exponent is 0
  // instead of 1.
  const int biased = exponent - layout.exponent_min;
  const int half = (biased << layout.fraction_bits) + static_cast<int>(multiples);
  return static_cast<std::uint16_t>(sign | std::min(half, infinity));
}

namespace {

template <class T>
T Scaled(double factor, T value) {
  return Rounded(static_cast<T>(factor) * value);
}

template <class T>
T AdamUpdated(Optimizer optimizer, const OptimizerArguments& arguments, T gradient, T parameter,
              T* first, T* second) {
  if (optimizer == Optimizer::kAdamW) {
    parameter = Scaled(1.0 - arguments.learning_rate * arguments.weight_decay, parameter);
  }
  if (arguments.step == 1) *first = *second = T{0};
  *first = Rounded(Scaled(arguments.beta1, *first) + Scaled(1.0 - arguments.beta1, gradient));
  const T square = Rounded(Scaled(1.0 - arguments.beta2, gradient) * gradient);
  *second = Rounded(Scaled(arguments.beta2, *second) + square);
  const double correction1 = 1.0 - PowerOf(arguments.beta1, arguments.step);
  const double correction2 = 1.0 - PowerOf(arguments.beta2, arguments.step);
  const T root = Rounded(std::sqrt(*second));
  const T corrected = Rounded(root / static_cast<T>(std::sqrt(correction2)));
  const T denominator = Rounded(corrected + static_cast<T>(arguments.epsilon));
  const T numerator = Scaled(arguments.learning_rate / correction1, *first);
  return Rounded(parameter - Rounded(numerator / denominator));
}

template <class T>
T AdagradUpdated(const OptimizerArguments& arguments, T gradient, T parameter, T* sum) {
  if (arguments.step == 1) *sum = static_cast<T>(arguments.initial_accumulator);
  *sum = Rounded(*sum + Rounded(gradient * gradient));
  const double earlier = static_cast<double>(arguments.step - 1);
  const double rate = arguments.learning_rate / (1.0 + earlier * arguments.learning_rate_decay);
  const T root = Rounded(std::sqrt(*sum));
  const T denominator = Rounded(root + static_cast<T>(arguments.epsilon));
  return Rounded(parameter - Rounded(Scaled(rate, gradient) / denominator));
}

template <class T>
T RmsPropUpdated(Optimizer optimizer, const OptimizerArguments& arguments, T gradient, T parameter,
                 T* average, T* second) {
  const bool centered = optimizer == Optimizer::kRmsPropCentered;
  const bool has_momentum = optimizer == Optimizer::kRmsPropMomentum;
  if (arguments.step == 1) {
    *average = T{0};
    if (centered || has_momentum) *second = T{0};
  }
  const T square = Rounded(Scaled(1.0 - arguments.alpha, gradient) * gradient);
  *average = Rounded(Scaled(arguments.alpha, *average) + square);
  T variance = *average;
  if (centered) {
    *second = Rounded(Scaled(arguments.alpha, *second) + Scaled(1.0 - arguments.alpha, gradient));
    variance = Rounded(variance - Rounded(*second * *second));
  }
  const T root = Rounded(std::sqrt(variance));
  const T denominator = Rounded(root + static_cast<T>(arguments.epsilon));
  if (!has_momentum) {
    const T numerator = Scaled(arguments.learning_rate, gradient);
    return Rounded(parameter - Rounded(numerator / denominator));
  }
  *second = Rounded(Scaled(arguments.momentum, *second) + Rounded(gradient / denominator));
  return Rounded(parameter - Scaled(arguments.learning_rate, *second));
}

}  // namespace

template <class T>
T Updated(Optimizer optimizer, const OptimizerArguments& arguments, T gradient, T parameter,
          T* state0, T* state1) {
  if (optimizer != Optimizer::kAdamW && arguments.weight_decay != 0.0) {
    gradient = Rounded(gradient + Scaled(arguments.weight_decay, parameter));
  }
  switch (optimizer) {
    case Optimizer::kAdam:
    case Optimizer::kAdamW:
      return AdamUpdated(optimizer, arguments, gradient, parameter, state0, state1);
    case Optimizer::kAdagrad: return AdagradUpdated(arguments, gradient, parameter, state0);
    case Optimizer::kRmsProp:
    case Optimizer::kRmsPropMomentum:
    case Optimizer::kRmsPropCentered:
      return RmsPropUpdated(optimizer, arguments, gradient, parameter, state0, state1);
    case Optimizer::kNone:
    case Optimizer::kSgd:
    case Optimizer::kMomentum:
    case Optimizer::kNesterov: break;
  }
  T direction = gradient;
  if (optimizer != Optimizer::kSgd) {
    const T kept = Scaled(arguments.momentum, *state0);
    const T added = Scaled(1.0 - arguments.dampening, gradient);
    *state0 = arguments.step == 1 ? gradient : Rounded(kept + added);
    direction = *state0;
    if (optimizer == Optimizer::kNesterov) {
      direction = Rounded(gradient + Scaled(arguments.momentum, *state0));
    }
  }
  return Rounded(parameter - Scaled(arguments.learning_rate, direction));
}

template float Updated(Optimizer, const OptimizerArguments&, float, float, float*, float*);
template double Updated(Optimizer, const OptimizerArguments&, double, double, double*, double*);

}  // namespace phub::simd::reference
