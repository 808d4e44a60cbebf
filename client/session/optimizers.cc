#include "client/session/optimizers.h"

#include <fmt/core.h>

#include <cmath>

namespace phub::client {

wire::HyperParameters HyperParametersOf(const Optimizer& optimizer) {
  wire::HyperParameters values;
  if (const auto* sgd = std::get_if<Sgd>(&optimizer)) {
    values.learning_rate = sgd->learning_rate;
    values.weight_decay = sgd->weight_decay;
  } else if (const auto* momentum = std::get_if<Momentum>(&optimizer)) {
    values.learning_rate = momentum->learning_rate;
    values.momentum = momentum->momentum;
    values.dampening = momentum->dampening;
    values.weight_decay = momentum->weight_decay;
  }
  return values;
}

v1::OptimizerKind OptimizerKindOf(const Optimizer& optimizer) {
  if (std::holds_alternative<Sgd>(optimizer)) return v1::OPTIMIZER_SGD;
  if (std::holds_alternative<Momentum>(optimizer)) return v1::OPTIMIZER_MOMENTUM;
  return v1::OPTIMIZER_NONE;
}

Status CheckHyperParameters(std::string_view key, const wire::HyperParameters& values) {
  const struct {
    const char* name;
    float value;
  } fields[] = {{"learning_rate", values.learning_rate},
                {"momentum", values.momentum},
                {"dampening", values.dampening},
                {"weight_decay", values.weight_decay}};
  for (const auto& field : fields)
    if (!std::isfinite(field.value))
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("key {}: {} is {}, which is not finite", key, field.name, field.value));
  return Status();
}

}  // namespace phub::client
