// The public optimizers as the wire and the control plane know them. Pure functions.
#pragma once

#include <string_view>

#include "common/wire/message.h"
#include "phub/client.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

wire::HyperParameters HyperParametersOf(const Optimizer& optimizer);
v1::OptimizerKind OptimizerKindOf(const Optimizer& optimizer);
// kInvalidArgument names the key and the value that is not finite.
Status CheckHyperParameters(std::string_view key, const wire::HyperParameters& values);

}  // namespace phub::client
