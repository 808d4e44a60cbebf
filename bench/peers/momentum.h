// The update that each worker computes after an all-reduce: torch.optim.SGD with momentum (without
// dampening). Compiled for this machine with all optimisations, so that the peers are not slowed
// down unfairly.
#pragma once

#include <cstddef>

namespace phub::bench {

// momentum = factor * momentum + mean_factor * sum;  parameter -= learning_rate * momentum. The
// arrays must not overlap.
void ApplyMomentum(const float* sums, float* parameters, float* momentum, std::size_t count,
                   float mean_factor, float learning_rate, float factor);

}  // namespace phub::bench
