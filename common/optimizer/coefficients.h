// What an update multiplies and divides by: derived once per call from the user's arguments, in
// double, as PyTorch derives it. Kernels (common/simd) round each to the accumulation type. Pure;
// any thread.
#pragma once

#include "common/optimizer/hyper_parameters.h"
#include "common/optimizer/optimizers.h"

namespace phub::optimizer {

struct Coefficients {
  double weight_decay = 0.0;     // added to the gradient; 0 for AdamW, which shrinks instead
  double parameter_scale = 1.0;  // AdamW: what it shrinks parameters by
  double step_size = 0.0;        // of the parameters' change, with the first bias correction in it
  double decay = 0.0;            // of the momentum or the first moment
  double gradient_weight = 0.0;  // what the gradient adds to it
  double square_decay = 0.0;     // of the second moment
  double square_weight = 0.0;
  double square_correction = 1.0;  // the root of the second bias correction
  double epsilon = 0.0;
  double initial_state = 0.0;  // before the first step
  bool first_step = false;
};

Coefficients CoefficientsOf(Optimizer optimizer, const OptimizerArguments& arguments);

}  // namespace phub::optimizer
