#include "bench/peers/momentum.h"

namespace phub::bench {

void ApplyMomentum(const float* __restrict sums, float* __restrict parameters,
                   float* __restrict momentum, std::size_t count, float mean_factor,
                   float learning_rate, float factor) {
  for (std::size_t i = 0; i < count; ++i) {
    const float next = factor * momentum[i] + mean_factor * sums[i];
    momentum[i] = next;
    parameters[i] -= learning_rate * next;
  }
}

}  // namespace phub::bench
