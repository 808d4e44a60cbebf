// What kernels.h is made of: each function below does one thing to a range of elements, commonly
// one that stays in the L1 cache between one function and the next, and is dispatched to the
// machine's instruction set. Internal to simd; pure.
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

// output = the terms' elements [range.begin, range.end) combined, and divided if it is a mean.
// `output` is the place of element range.begin; of the accumulation type, or, if the combination
// narrows, of the wire type. FoldRange picks among the others by wire type. True if some element,
// combined and not yet divided, is NaN or infinite.
struct Combination {
  ElementType wire;
  Reduction reduction;
  double divisor;
  bool narrows = false;
};
bool FoldRange(const Combination& combination, const Terms& terms, Range range, std::byte* output);
bool FoldFloatRange(const Combination& combination, const Terms& terms, Range range,
                    std::byte* output);
bool FoldHalfRange(const Combination& combination, const Terms& terms, Range range,
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
// Weight decay, then the optimizer. The gradient is used up.
void Update(ElementType accumulation, Optimizer optimizer, const Coefficients& coefficients,
            const UpdateArrays& arrays, std::size_t count);

// To memory, past the caches (to where it is aligned to a vector; else as any copy). Whoever tells
// others of what was written calls FinishStreaming() first.
void StreamCopy(const std::byte* input, std::byte* output, std::size_t bytes);
void FinishStreaming();

// All of a round but clipping, and replies in the parameters' type, in one loop, over any range; if
// there is one for it. True if some sum is NaN or infinite.
bool CanFoldAndUpdate(const Round& round, const RoundMemory& memory);
bool FoldAndUpdate(const Combination& combination, Optimizer optimizer,
                   const Coefficients& coefficients, const Terms& terms, Range range,
                   const RoundMemory& memory);

// The same for a sum that is stored, as it is, everywhere: to memory.next_parameters and replies.
bool CanFoldToAll(const Round& round, const RoundMemory& memory);
bool FoldToAll(const Combination& combination, const Terms& terms, Range range,
               const RoundMemory& memory);

}  // namespace phub::simd
