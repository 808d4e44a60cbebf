// Converts hyper-parameters between their control-plane and data-plane forms. Pure functions.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/optimizer/message_fields.h"
#include "common/wire/message.h"
#include "phub/v1/session.pb.h"

namespace phub::server {

inline v1::HyperParameters ToProto(const wire::HyperParameters& from) {
  v1::HyperParameters values;
  optimizer::ToMessage(from, values);
  return values;
}

inline bool IsFinite(const v1::HyperParameters& message) {
  const wire::HyperParameters values = optimizer::FromMessage(message);
  return std::ranges::all_of(optimizer::kFields, [&](const optimizer::Field& field) {
    return std::isfinite(values.*field.value);
  });
}

}  // namespace phub::server
