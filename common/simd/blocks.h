// The building blocks of kernels.h. Each function is one step over a range of elements and
// dispatches to the machine's instruction set. Ranges are usually short enough to stay in the L1
// cache between steps. Internal to simd; pure.
#pragma once

#include <array>
#include <cstddef>

#include "common/optimizer/coefficients.h"
#include "common/simd/kernels.h"

namespace phub::simd {

struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t size() const { return end - begin; }
};

// Combines elements [range.begin, range.end) of the terms, and divides for a mean. `output` points
// to element range.begin. Its type is the accumulation type, or the wire type if `narrows` is set.
// FoldRange calls one of the other functions, by wire type. Returns true if a combined element is
// NaN or infinite before division.
struct Combination {
  ElementType wire;
  Reduction reduction;
  double divisor;
  bool narrows = false;
  const Encoded* encoded = nullptr;  // the inputs are encoded f32: sums and means, never narrowed
};
bool FoldRange(const Combination& combination, const Terms& terms, Range range, std::byte* output);
bool FoldFloatRange(const Combination& combination, const Terms& terms, Range range,
                    std::byte* output);
bool FoldHalfRange(const Combination& combination, const Terms& terms, Range range,
                   std::byte* output);
bool FoldEncodedRange(const Combination& combination, const Terms& terms, Range range,
                      std::byte* output);
bool FoldIntegerRange(const Combination& combination, const Terms& terms, Range range,
                      std::byte* output);

// Arrays of one range, all in the accumulation type (f32 or f64). `next` may be `parameters`.
struct UpdateArrays {
  std::byte* gradient;
  const std::byte* parameters;
  std::byte* next;
  std::array<std::byte*, kStatesMax> state;
};
void ClipGradient(ElementType accumulation, double clip_value, std::byte* gradient,
                  std::size_t count);
// Applies weight decay, then the optimizer. Overwrites the gradient.
void Update(ElementType accumulation, Optimizer optimizer, const Coefficients& coefficients,
            const UpdateArrays& arrays, std::size_t count);

// Copies with non-temporal stores if `output` is aligned to a vector, otherwise with normal stores.
// Call FinishStreaming() before notifying another thread of the data.
void StreamCopy(const std::byte* input, std::byte* output, std::size_t bytes);
void FinishStreaming();

// A round in a single loop over any range, without intermediate results. CanFoldAndUpdate() returns
// whether such a loop exists for the round; clipping, encoded gradients and replies in the
// parameters' type have none.
// FoldAndUpdate() returns true if a sum is NaN or infinite.
bool CanFoldAndUpdate(const Round& round, const RoundMemory& memory);
bool FoldAndUpdate(const Combination& combination, Optimizer optimizer,
                   const Coefficients& coefficients, const Terms& terms, Range range,
                   const RoundMemory& memory);

// The same for a sum or mean that is stored unchanged in memory.next_parameters and replies.
bool CanFoldToAll(const Round& round, const RoundMemory& memory);
bool FoldToAll(const Combination& combination, const Terms& terms, Range range,
               const RoundMemory& memory);

}  // namespace phub::simd
