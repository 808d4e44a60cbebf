// Converts the public optimizers for the wire and the control plane. Pure functions.
#pragma once

#include <string_view>

#include "common/base/reduction.h"
#include "common/wire/message.h"
#include "phub/client.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

wire::HyperParameters HyperParametersOf(const Optimizer& optimizer);
v1::OptimizerKind OptimizerKindOf(const Optimizer& optimizer);
v1::Operation OperationOf(Operation operation);  // kDefault: unspecified
numeric::Reduction ReductionOf(
    Operation operation);  // REQUIRES: not kDefault, and OperationOf() has it

void ToProto(const wire::HyperParameters& values, v1::HyperParameters& message);
wire::HyperParameters FromProto(const v1::HyperParameters& message);

// Checks the ranges of torch.optim. kInvalidArgument: the message says what is allowed. `place`
// names the key.
Status CheckHyperParameters(std::string_view place, const Optimizer& optimizer);

}  // namespace phub::client
