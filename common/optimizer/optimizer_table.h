// One row per optimizer: its name, hyper-parameters, state and coefficients. Checks in client and
// server, records, checkpoints and messages are derived from the rows. Constant data; any thread.
//
// To add an optimizer, add its formula and value to optimizers.h, its row to optimizer_table.cc,
// its kernel to common/simd/updates-inl.h, its value to proto/phub/v1/keys.proto and its struct
// to client/include/phub/types.h. Tests compare these five.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/optimizer/coefficients.h"
#include "common/optimizer/hyper_parameters.h"
#include "common/optimizer/optimizers.h"

namespace phub::optimizer {

// The valid values of a hyper-parameter. Infinities and NaN are never valid.
enum class Range : std::uint8_t {
  kFinite,
  kAtLeastZero,
  kZeroIsOff,  // like kAtLeastZero; 0 turns the feature off
  kAboveZero,
  kBelowOne,  // at least 0 and less than 1
  kZero,      // the optimizer does not support it; only 0 is valid
};
constexpr bool IsIn(Range range, double value) {
  if (!(value - value == 0.0)) return false;  // NaN, infinity
  switch (range) {
    case Range::kFinite: return true;
    case Range::kAtLeastZero:
    case Range::kZeroIsOff: return value >= 0.0;
    case Range::kAboveZero: return value > 0.0;
    case Range::kBelowOne: return value >= 0.0 && value < 1.0;
    case Range::kZero: return value == 0.0;
  }
  return false;
}

// A hyper-parameter of one optimizer.
struct HyperParameter {
  double HyperParameters::*value = nullptr;
  Range range = Range::kAtLeastZero;
  double initial = 0.0;  // the default, the same as in the public struct

  const Field& field() const;
};

struct Descriptor {
  Optimizer optimizer{};
  const char* name = nullptr;  // in messages and checkpoints
  // In the order in which they are checked.
  std::span<const HyperParameter> hyper_parameters;
  // The names of its state arrays in checkpoints; at most kStatesMax.
  std::span<const char* const> states;
  // Sets the coefficients that the formula needs in addition to weight_decay, learning_rate and
  // epsilon. Null: none.
  void (*derive)(const OptimizerArguments& arguments, Coefficients& coefficients) = nullptr;
};

// In the order of the enum.
std::span<const Descriptor> Descriptors();
const Descriptor& DescriptorOf(Optimizer optimizer);
// Finds an optimizer by its number in messages. Null if the number is unknown.
const Descriptor* FindDescriptor(std::int64_t number);

const char* ToString(Optimizer optimizer);  // "none", "sgd", "momentum", ...
std::string Names();                        // "none, sgd, momentum, ..."
std::size_t StateCount(Optimizer optimizer);

}  // namespace phub::optimizer
