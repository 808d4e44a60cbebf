// Hyper-parameters: the record sent on lanes, the arguments of an update, and one list of the
// fields of both. Plain data; any thread.
//
// The list has the order of the record on the wire, and field i has number i + 1 in
// phub.v1.HyperParameters. A new hyper-parameter takes a reserved double of the record, a line in
// each list below, and the next field of the message.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

namespace phub::optimizer {

// The payload of kHyperParameters (common/wire/message.h). Each optimizer reads the fields it
// needs. The fields are doubles, so that a value such as 0.9 keeps its precision until kernels
// round it to the accumulation type.
struct HyperParameters {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;  // clamps the reduced gradient to [-clip_value, clip_value]; 0: off
  double momentum = 0.0;
  double dampening = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double epsilon = 0.0;
  double learning_rate_decay = 0.0;
  double initial_accumulator = 0.0;  // only version 1 sets it; later versions cannot change it
  double alpha = 0.0;                // decay of the average of squares of rmsprop
  std::array<double, 1> reserved{};  // zero

  friend bool operator==(const HyperParameters&, const HyperParameters&) = default;
};

// The arguments of one update: the user's values and the step. Updates accept any values, even
// meaningless ones.
struct OptimizerArguments {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double clip_value = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double epsilon = 0.0;
  double learning_rate_decay = 0.0;
  double initial_accumulator = 0.0;
  double alpha = 0.0;
  std::uint64_t step = 1;  // this update, counted from 1
};

struct Field {
  const char* name;  // in messages and checkpoints
  double HyperParameters::*value;
  double OptimizerArguments::*argument;
  bool is_fixed = false;  // set when the key is added; later versions cannot change it
};
inline constexpr std::array<Field, 11> kFields = {{
    {"learning_rate", &HyperParameters::learning_rate, &OptimizerArguments::learning_rate},
    {"weight_decay", &HyperParameters::weight_decay, &OptimizerArguments::weight_decay},
    {"clip_value", &HyperParameters::clip_value, &OptimizerArguments::clip_value},
    {"momentum", &HyperParameters::momentum, &OptimizerArguments::momentum},
    {"dampening", &HyperParameters::dampening, &OptimizerArguments::dampening},
    {"beta1", &HyperParameters::beta1, &OptimizerArguments::beta1},
    {"beta2", &HyperParameters::beta2, &OptimizerArguments::beta2},
    {"epsilon", &HyperParameters::epsilon, &OptimizerArguments::epsilon},
    {"learning_rate_decay", &HyperParameters::learning_rate_decay,
     &OptimizerArguments::learning_rate_decay},
    {"initial_accumulator", &HyperParameters::initial_accumulator,
     &OptimizerArguments::initial_accumulator, true},
    {"alpha", &HyperParameters::alpha, &OptimizerArguments::alpha},
}};
static_assert(sizeof(HyperParameters) ==
                  (kFields.size() +
                   std::tuple_size_v<decltype(HyperParameters::reserved)>)*sizeof(double),
              "every double of the record must be in kFields or reserved");
static_assert(sizeof(OptimizerArguments) == kFields.size() * sizeof(double) + sizeof(std::uint64_t),
              "every argument except the step must be in kFields");

// For each field of kFields, whether a struct has a member of that name.
// clang-format off
template <typename Struct>
constexpr std::array<bool, kFields.size()> FieldsOf() {
  return {requires(Struct s) { s.learning_rate; },
          requires(Struct s) { s.weight_decay; },
          requires(Struct s) { s.clip_value; },
          requires(Struct s) { s.momentum; },
          requires(Struct s) { s.dampening; },
          requires(Struct s) { s.beta1; },
          requires(Struct s) { s.beta2; },
          requires(Struct s) { s.epsilon; },
          requires(Struct s) { s.learning_rate_decay; },
          requires(Struct s) { s.initial_accumulator; },
          requires(Struct s) { s.alpha; }};
}
// clang-format on

// Copies a public optimizer struct by member names. Every double of the struct must be in kFields.
template <typename Struct>
constexpr HyperParameters FromStruct(const Struct& from) {
  HyperParameters values;
  if constexpr (requires { from.learning_rate; }) values.learning_rate = from.learning_rate;
  if constexpr (requires { from.weight_decay; }) values.weight_decay = from.weight_decay;
  if constexpr (requires { from.clip_value; }) values.clip_value = from.clip_value;
  if constexpr (requires { from.momentum; }) values.momentum = from.momentum;
  if constexpr (requires { from.dampening; }) values.dampening = from.dampening;
  if constexpr (requires { from.beta1; }) values.beta1 = from.beta1;
  if constexpr (requires { from.beta2; }) values.beta2 = from.beta2;
  if constexpr (requires { from.epsilon; }) values.epsilon = from.epsilon;
  if constexpr (requires { from.learning_rate_decay; })
    values.learning_rate_decay = from.learning_rate_decay;
  if constexpr (requires { from.initial_accumulator; })
    values.initial_accumulator = from.initial_accumulator;
  if constexpr (requires { from.alpha; }) values.alpha = from.alpha;
  constexpr auto kHas = FieldsOf<Struct>();
  static_assert(std::is_empty_v<Struct> || sizeof(Struct) == static_cast<std::size_t>(std::count(
                                                                 kHas.begin(), kHas.end(), true)) *
                                                                 sizeof(double),
                "a value of the struct is not in kFields");
  return values;
}

// The arguments of one step. `first`: the values with which the key was added.
inline OptimizerArguments ArgumentsOf(const HyperParameters& values, const HyperParameters& first,
                                      std::uint64_t step) {
  OptimizerArguments arguments;
  for (const Field& field : kFields) {
    arguments.*field.argument = (field.is_fixed ? first : values).*field.value;
  }
  arguments.step = step;
  return arguments;
}

}  // namespace phub::optimizer
