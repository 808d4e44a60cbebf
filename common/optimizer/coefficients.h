// The coefficients of an update, derived once per call from the user's arguments, in double, as in
// PyTorch. Kernels (common/simd) round each coefficient to the accumulation type. Pure; any thread.
#pragma once

#include "common/optimizer/hyper_parameters.h"
#include "common/optimizer/optimizers.h"

namespace phub::optimizer {

struct Coefficients {
  double weight_decay = 0.0;     // multiplies p, which is then added to g; 0 for AdamW
  double parameter_scale = 1.0;  // AdamW's weight decay: multiplies the parameters
  double step_size = 0.0;        // includes the first bias correction
  double decay = 0.0;            // multiplies the momentum or first moment
  double gradient_weight = 0.0;  // multiplies g, which is then added to the momentum or moment
  double square_decay = 0.0;     // multiplies the second moment
  double square_weight = 0.0;
  double square_correction = 1.0;  // square root of the second bias correction
  double epsilon = 0.0;
  double initial_state = 0.0;  // value of the state before the first step
  bool first_step = false;
};

Coefficients CoefficientsOf(Optimizer optimizer, const OptimizerArguments& arguments);

}  // namespace phub::optimizer
