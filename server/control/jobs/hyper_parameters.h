// Hyper-parameters as the control plane writes them and as the data plane does. Pure functions.
#pragma once

#include <cmath>

#include "common/wire/message.h"
#include "phub/v1/session.pb.h"

namespace phub::server {

inline v1::HyperParameters ToProto(const wire::HyperParameters& from) {
  v1::HyperParameters values;
  values.set_learning_rate(from.learning_rate);
  values.set_weight_decay(from.weight_decay);
  values.set_clip_value(from.clip_value);
  values.set_momentum(from.momentum);
  values.set_dampening(from.dampening);
  values.set_beta1(from.beta1);
  values.set_beta2(from.beta2);
  values.set_epsilon(from.epsilon);
  values.set_learning_rate_decay(from.learning_rate_decay);
  values.set_initial_accumulator(from.initial_accumulator);
  return values;
}

inline bool IsFinite(const v1::HyperParameters& values) {
  return std::isfinite(values.learning_rate()) && std::isfinite(values.weight_decay()) &&
         std::isfinite(values.clip_value()) && std::isfinite(values.momentum()) &&
         std::isfinite(values.dampening()) && std::isfinite(values.beta1()) &&
         std::isfinite(values.beta2()) && std::isfinite(values.epsilon()) &&
         std::isfinite(values.learning_rate_decay()) && std::isfinite(values.initial_accumulator());
}

}  // namespace phub::server
