#include "common/optimizer/optimizer_table.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/optimizer/power.h"

namespace phub::optimizer {
namespace {

// Caches the last power: consecutive chunks of an iteration need the same one.
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

void DeriveMomentum(const OptimizerArguments& arguments, Coefficients& coefficients) {
  coefficients.decay = arguments.momentum;
  coefficients.gradient_weight = 1.0 - arguments.dampening;
}

void DeriveAdam(const OptimizerArguments& arguments, Coefficients& coefficients) {
  thread_local LastPower last1;
  thread_local LastPower last2;
  const double correction1 = 1.0 - last1.Of(arguments.beta1, arguments.step);
  const double correction2 = 1.0 - last2.Of(arguments.beta2, arguments.step);
  coefficients.step_size = arguments.learning_rate / correction1;
  coefficients.decay = arguments.beta1;
  coefficients.gradient_weight = 1.0 - arguments.beta1;
  coefficients.square_decay = arguments.beta2;
  coefficients.square_weight = 1.0 - arguments.beta2;
  coefficients.square_correction = std::sqrt(correction2);  // correctly rounded by IEEE 754
}

void DeriveAdamW(const OptimizerArguments& arguments, Coefficients& coefficients) {
  DeriveAdam(arguments, coefficients);
  coefficients.weight_decay = 0.0;
  coefficients.parameter_scale = 1.0 - arguments.learning_rate * arguments.weight_decay;
}

void DeriveAdagrad(const OptimizerArguments& arguments, Coefficients& coefficients) {
  coefficients.step_size =
      arguments.learning_rate /
      (1.0 + static_cast<double>(arguments.step - 1) * arguments.learning_rate_decay);
  coefficients.initial_state = arguments.initial_accumulator;
}

void DeriveRmsProp(const OptimizerArguments& arguments, Coefficients& coefficients) {
  coefficients.square_decay = arguments.alpha;
  coefficients.square_weight = 1.0 - arguments.alpha;
  coefficients.decay = arguments.momentum;
}

void DeriveRmsPropCentered(const OptimizerArguments& arguments, Coefficients& coefficients) {
  DeriveRmsProp(arguments, coefficients);
  coefficients.decay = arguments.alpha;
  coefficients.gradient_weight = 1.0 - arguments.alpha;
}

using H = HyperParameters;

// The ranges are the same as in torch.optim.
constexpr HyperParameter kSgd[] = {
    {&H::learning_rate}, {&H::weight_decay}, {&H::clip_value, Range::kZeroIsOff}};
constexpr HyperParameter kMomentum[] = {{&H::learning_rate},
                                        {&H::weight_decay},
                                        {&H::clip_value, Range::kZeroIsOff},
                                        {&H::momentum},
                                        {&H::dampening, Range::kFinite}};
constexpr HyperParameter kNesterov[] = {{&H::learning_rate},
                                        {&H::weight_decay},
                                        {&H::clip_value, Range::kZeroIsOff},
                                        {&H::momentum, Range::kAboveZero},
                                        {&H::dampening, Range::kZero}};
constexpr HyperParameter kAdam[] = {{&H::learning_rate, Range::kAtLeastZero, 1e-3},
                                    {&H::weight_decay},
                                    {&H::clip_value, Range::kZeroIsOff},
                                    {&H::beta1, Range::kBelowOne, 0.9},
                                    {&H::beta2, Range::kBelowOne, 0.999},
                                    {&H::epsilon, Range::kAtLeastZero, 1e-8}};
constexpr HyperParameter kAdamW[] = {{&H::learning_rate, Range::kAtLeastZero, 1e-3},
                                     {&H::weight_decay, Range::kAtLeastZero, 1e-2},
                                     {&H::clip_value, Range::kZeroIsOff},
                                     {&H::beta1, Range::kBelowOne, 0.9},
                                     {&H::beta2, Range::kBelowOne, 0.999},
                                     {&H::epsilon, Range::kAtLeastZero, 1e-8}};
constexpr HyperParameter kAdagrad[] = {{&H::learning_rate, Range::kAtLeastZero, 1e-2},
                                       {&H::weight_decay},
                                       {&H::clip_value, Range::kZeroIsOff},
                                       {&H::epsilon, Range::kAtLeastZero, 1e-10},
                                       {&H::learning_rate_decay},
                                       {&H::initial_accumulator}};
constexpr HyperParameter kRmsProp[] = {{&H::learning_rate, Range::kAtLeastZero, 1e-2},
                                       {&H::weight_decay},
                                       {&H::clip_value, Range::kZeroIsOff},
                                       {&H::alpha, Range::kAtLeastZero, 0.99},
                                       {&H::epsilon, Range::kAtLeastZero, 1e-8}};
constexpr HyperParameter kRmsPropMomentum[] = {{&H::learning_rate, Range::kAtLeastZero, 1e-2},
                                               {&H::weight_decay},
                                               {&H::clip_value, Range::kZeroIsOff},
                                               {&H::alpha, Range::kAtLeastZero, 0.99},
                                               {&H::epsilon, Range::kAtLeastZero, 1e-8},
                                               {&H::momentum}};

constexpr const char* kMomentumState[] = {"momentum"};
constexpr const char* kMoments[] = {"first_moment", "second_moment"};
constexpr const char* kSumOfSquares[] = {"sum_of_squares"};
constexpr const char* kSquareAverage[] = {"square_average"};
constexpr const char* kSquareAverageAndMomentum[] = {"square_average", "momentum"};
constexpr const char* kAverages[] = {"square_average", "gradient_average"};

constexpr Descriptor kTable[] = {
    {Optimizer::kNone, "none", {}, {}, nullptr},
    {Optimizer::kSgd, "sgd", kSgd, {}, nullptr},
    {Optimizer::kMomentum, "momentum", kMomentum, kMomentumState, &DeriveMomentum},
    {Optimizer::kNesterov, "nesterov", kNesterov, kMomentumState, &DeriveMomentum},
    {Optimizer::kAdam, "adam", kAdam, kMoments, &DeriveAdam},
    {Optimizer::kAdamW, "adamw", kAdamW, kMoments, &DeriveAdamW},
    {Optimizer::kAdagrad, "adagrad", kAdagrad, kSumOfSquares, &DeriveAdagrad},
    {Optimizer::kRmsProp, "rmsprop", kRmsProp, kSquareAverage, &DeriveRmsProp},
    {Optimizer::kRmsPropMomentum, "rmsprop_momentum", kRmsPropMomentum, kSquareAverageAndMomentum,
     &DeriveRmsProp},
    {Optimizer::kRmsPropCentered, "rmsprop_centered", kRmsProp, kAverages, &DeriveRmsPropCentered},
};

constexpr bool RowsAreInOrder() {
  std::size_t row = 0;
  for (const Descriptor& each : kTable) {
    if (static_cast<std::size_t>(each.optimizer) != row++) return false;
    if (each.states.size() > kStatesMax) return false;
  }
  return true;
}
static_assert(RowsAreInOrder(),
              "row i must describe optimizer i and have at most kStatesMax states");

}  // namespace

const Field& HyperParameter::field() const {
  const auto found = std::ranges::find(kFields, value, &Field::value);
  PHUB_CHECK(found != kFields.end());
  return *found;
}

std::span<const Descriptor> Descriptors() { return kTable; }

const Descriptor& DescriptorOf(Optimizer optimizer) {
  const auto row = static_cast<std::size_t>(optimizer);
  PHUB_CHECK(row < std::size(kTable), "optimizer={}", row);
  return kTable[row];
}

const Descriptor* FindDescriptor(std::int64_t number) {
  if (number < 0 || number >= static_cast<std::int64_t>(std::size(kTable))) return nullptr;
  return &kTable[number];
}

const char* ToString(Optimizer optimizer) { return DescriptorOf(optimizer).name; }

std::string Names() {
  std::string names;
  for (const Descriptor& each : kTable) {
    if (!names.empty()) names += ", ";
    names += each.name;
  }
  return names;
}

std::size_t StateCount(Optimizer optimizer) { return DescriptorOf(optimizer).states.size(); }

Coefficients CoefficientsOf(Optimizer optimizer, const OptimizerArguments& arguments) {
  PHUB_CHECK(arguments.step >= 1, "optimizer={}", ToString(optimizer));
  Coefficients coefficients;
  coefficients.weight_decay = arguments.weight_decay;
  coefficients.step_size = arguments.learning_rate;
  coefficients.epsilon = arguments.epsilon;
  coefficients.first_step = arguments.step == 1;
  if (const auto derive = DescriptorOf(optimizer).derive) derive(arguments, coefficients);
  return coefficients;
}

}  // namespace phub::optimizer
