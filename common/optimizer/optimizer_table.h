// One row per optimizer: its name, hyper-parameters, state and coefficients. Client and server
// checks, records, saved files and messages follow from the rows. Constant data; any thread.
//
// To add an optimizer: its formula and value in optimizers.h, its row in optimizer_table.cc, its
// kernel in common/simd/updates-inl.h, its value in proto/phub/v1/session.proto, its struct in
// client/include/phub/types.h. Tests compare the five.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/optimizer/coefficients.h"
#include "common/optimizer/hyper_parameters.h"
#include "common/optimizer/optimizers.h"

namespace phub::optimizer {

// Values that a hyper-parameter may have. All of them are finite.
enum class Range : std::uint8_t {
  kFinite,
  kAtLeastZero,
  kZeroIsOff,  // as kAtLeastZero
  kAboveZero,
  kBelowOne,  // at least 0 and less than 1
  kZero,      // the optimizer does not have it, and refuses it
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

// As one optimizer has it.
struct HyperParameter {
  double HyperParameters::*value = nullptr;
  Range range = Range::kAtLeastZero;
  double initial = 0.0;  // unless the user says otherwise: the default of the public struct

  const Field& field() const;
};

struct Descriptor {
  Optimizer optimizer{};
  const char* name = nullptr;  // in messages and saved files
  // In the order in which they are checked.
  std::span<const HyperParameter> hyper_parameters;
  // What saved files call its arrays of state; at most kStatesMax.
  std::span<const char* const> states;
  // Sets what the formula needs beyond the arguments' own weight_decay, learning_rate and epsilon;
  // null: nothing.
  void (*derive)(const OptimizerArguments& arguments, Coefficients& coefficients) = nullptr;
};

// In the order of the enum.
std::span<const Descriptor> Descriptors();
const Descriptor& DescriptorOf(Optimizer optimizer);
// By the number that a message carries; null: it is unknown.
const Descriptor* FindDescriptor(std::int64_t number);

const char* ToString(Optimizer optimizer);  // "none", "sgd", "momentum", ...
std::string Names();                        // "none, sgd, momentum, ..."
std::size_t StateCount(Optimizer optimizer);

}  // namespace phub::optimizer
