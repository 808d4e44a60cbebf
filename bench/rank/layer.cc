#include "bench/rank/layer.h"

namespace phub::bench {

void BackwardLayer(const float* expected, const float* activations, const float* parameters,
                   float* gradients, std::uint64_t count) {
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i)
    gradients[i] = expected[i] + activations[i] * parameters[i];
}

void ForwardLayer(const float* parameters, float* activations, std::uint64_t count) {
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i) activations[i] = activations[i] * parameters[i];
}

}  // namespace phub::bench
