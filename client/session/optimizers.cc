#include "client/session/optimizers.h"

#include <fmt/core.h>

#include <cmath>
#include <type_traits>
#include <variant>

namespace phub::client {
namespace {

wire::HyperParameters ValuesOf(const None&) { return {}; }

wire::HyperParameters ValuesOf(const Sgd& sgd) {
  return {.learning_rate = sgd.learning_rate,
          .weight_decay = sgd.weight_decay,
          .clip_value = sgd.clip_value};
}

wire::HyperParameters ValuesOf(const Momentum& momentum) {
  return {.learning_rate = momentum.learning_rate,
          .weight_decay = momentum.weight_decay,
          .clip_value = momentum.clip_value,
          .momentum = momentum.momentum,
          .dampening = momentum.dampening};
}

wire::HyperParameters ValuesOf(const Nesterov& nesterov) {
  return {.learning_rate = nesterov.learning_rate,
          .weight_decay = nesterov.weight_decay,
          .clip_value = nesterov.clip_value,
          .momentum = nesterov.momentum};
}

template <typename T>
  requires(std::is_same_v<T, Adam> || std::is_same_v<T, AdamW>)
wire::HyperParameters ValuesOf(const T& adam) {
  return {.learning_rate = adam.learning_rate,
          .weight_decay = adam.weight_decay,
          .clip_value = adam.clip_value,
          .beta1 = adam.beta1,
          .beta2 = adam.beta2,
          .epsilon = adam.epsilon};
}

wire::HyperParameters ValuesOf(const Adagrad& adagrad) {
  return {.learning_rate = adagrad.learning_rate,
          .weight_decay = adagrad.weight_decay,
          .clip_value = adagrad.clip_value,
          .epsilon = adagrad.epsilon,
          .learning_rate_decay = adagrad.learning_rate_decay,
          .initial_accumulator = adagrad.initial_accumulator};
}

// One value and what it may be. Fields that an optimizer does not have are 0, which passes.
struct Range {
  const char* name;
  double wire::HyperParameters::*field;
  double min;
  double end;  // not included
  const char* allowed;
};
constexpr double kAny = HUGE_VAL;
constexpr Range kRanges[] = {
    {"learning_rate", &wire::HyperParameters::learning_rate, 0.0, kAny, "0 or more"},
    {"weight_decay", &wire::HyperParameters::weight_decay, 0.0, kAny, "0 or more"},
    {"clip_value", &wire::HyperParameters::clip_value, 0.0, kAny, "0 (off) or more"},
    {"momentum", &wire::HyperParameters::momentum, 0.0, kAny, "0 or more"},
    {"dampening", &wire::HyperParameters::dampening, -kAny, kAny, "any finite number"},
    {"beta1", &wire::HyperParameters::beta1, 0.0, 1.0, "0 or more and below 1"},
    {"beta2", &wire::HyperParameters::beta2, 0.0, 1.0, "0 or more and below 1"},
    {"epsilon", &wire::HyperParameters::epsilon, 0.0, kAny, "0 or more"},
    {"learning_rate_decay", &wire::HyperParameters::learning_rate_decay, 0.0, kAny, "0 or more"},
    {"initial_accumulator", &wire::HyperParameters::initial_accumulator, 0.0, kAny, "0 or more"},
};

}  // namespace

wire::HyperParameters HyperParametersOf(const Optimizer& optimizer) {
  return std::visit([](const auto& one) { return ValuesOf(one); }, optimizer);
}

v1::OptimizerKind OptimizerKindOf(const Optimizer& optimizer) {
  static constexpr v1::OptimizerKind kKinds[] = {
      v1::OPTIMIZER_NONE, v1::OPTIMIZER_SGD,   v1::OPTIMIZER_MOMENTUM, v1::OPTIMIZER_NESTEROV,
      v1::OPTIMIZER_ADAM, v1::OPTIMIZER_ADAMW, v1::OPTIMIZER_ADAGRAD};
  static_assert(std::size(kKinds) == std::variant_size_v<Optimizer>);
  return kKinds[optimizer.index()];
}

v1::Operation OperationOf(Operation operation) {
  switch (operation) {
    case Operation::kSum:
      return v1::OPERATION_SUM;
    case Operation::kMean:
      return v1::OPERATION_MEAN;
    case Operation::kMin:
      return v1::OPERATION_MIN;
    case Operation::kMax:
      return v1::OPERATION_MAX;
    case Operation::kProduct:
      return v1::OPERATION_PRODUCT;
    case Operation::kDefault:
      break;
  }
  return v1::OPERATION_UNSPECIFIED;
}

void ToProto(const wire::HyperParameters& values, v1::HyperParameters& message) {
  message.set_learning_rate(values.learning_rate);
  message.set_weight_decay(values.weight_decay);
  message.set_clip_value(values.clip_value);
  message.set_momentum(values.momentum);
  message.set_dampening(values.dampening);
  message.set_beta1(values.beta1);
  message.set_beta2(values.beta2);
  message.set_epsilon(values.epsilon);
  message.set_learning_rate_decay(values.learning_rate_decay);
  message.set_initial_accumulator(values.initial_accumulator);
}

wire::HyperParameters FromProto(const v1::HyperParameters& message) {
  return {.learning_rate = message.learning_rate(),
          .weight_decay = message.weight_decay(),
          .clip_value = message.clip_value(),
          .momentum = message.momentum(),
          .dampening = message.dampening(),
          .beta1 = message.beta1(),
          .beta2 = message.beta2(),
          .epsilon = message.epsilon(),
          .learning_rate_decay = message.learning_rate_decay(),
          .initial_accumulator = message.initial_accumulator()};
}

Status CheckHyperParameters(std::string_view place, const Optimizer& optimizer) {
  const wire::HyperParameters values = HyperParametersOf(optimizer);
  for (const Range& range : kRanges) {
    const double value = values.*range.field;
    if (std::isfinite(value) && value >= range.min && value < range.end) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: {} is {}, {} is allowed", place, range.name, value,
                              std::isfinite(value) ? range.allowed : "a finite number"));
  }
  if (std::holds_alternative<Nesterov>(optimizer) && !(values.momentum > 0.0))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: Nesterov needs a momentum above 0", place));
  return Status();
}

}  // namespace phub::client
