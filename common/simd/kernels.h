// The arithmetic of phub: k-way sums, alone or fused with an optimizer's update, in one pass.
// Pure functions, any thread. Dispatched at run time to the widest instruction set of the machine;
// the same bits on every one.
//
// Numbers. Inputs are added as a left fold in the order given, starting from inputs[0]'s value
// (not from zero): ((inputs[0] + inputs[1]) + inputs[2]) + ... Every operation rounds on its own
// (no fused multiply-add, no approximation, no flush to zero). A mean divides the finished sum
// once by `divisor`. Callers keep the floating-point mode of SetFloatingPointMode(). Only which NaN
// an element becomes (sign, payload) is the machine's affair; that it is one is not.
//
// Shapes. Every input and every other array has `count` elements; 1 <= inputs.size() <= kRanksMax.
// Arrays need no alignment beyond a float's. `output` may be the same array as an input, else
// nothing overlaps.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace phub::simd {

using Inputs = std::span<const float* const>;

// output = sum(inputs)
void Sum(Inputs inputs, std::size_t count, float* output);
// output = sum(inputs) / divisor
void SumMean(Inputs inputs, std::size_t count, float divisor, float* output);

// torch.optim.SGD's definition, one step:
//   g = sum(inputs)            or sum(inputs) / divisor, if divisor != 0
//   g = g + weight_decay * p   if weight_decay != 0
//   b = g                      on the first step, else  b = momentum * b + (1 - dampening) * g
//   p = p - learning_rate * b  (SumSgd: g for b)
struct SgdArguments {
  float divisor = 0.0f;  // 0: sum, no division
  float learning_rate = 0.0f;
  float momentum = 0.0f;
  float dampening = 0.0f;
  float weight_decay = 0.0f;
  bool first_step = false;
};
void SumSgd(Inputs inputs, std::size_t count, const SgdArguments& arguments, float* parameters);
void SumMomentum(Inputs inputs, std::size_t count, const SgdArguments& arguments, float* parameters,
                 float* momentum);

// Round to nearest even, denormals kept: for the calling thread. Every thread that computes calls
// it once, since a library may have changed the mode.
void SetFloatingPointMode();

// The instruction set in use ("AVX2"), and all that this machine could use.
const char* TargetName();
std::vector<const char*> SupportedTargetNames();

}  // namespace phub::simd
