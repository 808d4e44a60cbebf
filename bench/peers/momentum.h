// The update that a worker computes for itself after an all-reduce: torch.optim.SGD's with momentum
// (no dampening). Compiled for this very machine with every optimisation, so that a peer's whole
// work is not slower than it must be.
#pragma once

#include <cstddef>

namespace phub::bench {

// momentum = factor * momentum + mean_factor * sum;  parameter -= learning_rate * momentum.
// No overlap.
void ApplyMomentum(const float* sums, float* parameters, float* momentum, std::size_t count,
                   float mean_factor, float learning_rate, float factor);

}  // namespace phub::bench
