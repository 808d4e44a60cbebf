// The memory traffic of a layer's computation: streams that are read and written once. Vectorised.
#pragma once

#include <cstdint>

namespace phub::bench {

// gradients = expected + activations * parameters: three streams read, one written.
void BackwardLayer(const float* expected, const float* activations, const float* parameters,
                   float* gradients, std::uint64_t count);
// activations = activations * parameters: two streams read, one written.
void ForwardLayer(const float* parameters, float* activations, std::uint64_t count);

}  // namespace phub::bench
