// The arithmetic of a round: reduction, optimizer step and storing of results, in one pass over
// memory. Pure functions, any thread. At run time they dispatch to the machine's widest instruction
// set. Every instruction set gives the same bits.
//
// Numbers:
// - The accumulation type is f32 for f16, bf16 and f32, and the type itself otherwise. All
//   computation uses it.
// - Terms are combined as a left fold in the given order. The fold starts from the first term, not
//   from zero: ((t0 + t1) + t2) + ...
// - Every operation rounds separately: no fused multiply-add, no approximation, no flush to zero.
// - Half-precision inputs are widened exactly. Half-precision results are rounded once, to nearest
//   even, from the accumulation type.
// - A mean divides the finished sum once by `ranks`. Clipping follows, and then the optimizer.
// - Integers wrap. Callers must keep the floating-point mode of SetFloatingPointMode().
//
// NaN. A minimum or maximum with a NaN among its terms is the canonical NaN of the accumulation
// type (positive, quiet, no payload), and -0 < +0. A NaN stored in a half-precision type becomes
// that type's canonical NaN (0x7e00, 0x7fc0). In all other results the sign and payload of a NaN
// depend on the machine, but whether an element is NaN does not. Clipping keeps NaNs.
//
// Screening. Every fold reports whether an element of its result is NaN or infinite, in the
// accumulation type and before a mean's division. Sums and products detect every NaN and infinity
// among their terms, and sums that overflow. Minima and maxima detect every NaN, but an infinity
// only if it is the result. Integers are always finite. Screening is always on, because its cost is
// negligible (bench/NOTES.md).
//
// Memory. Every array has `count` elements of its type, aligned to one element. Another process may
// write to terms during a call: each of their elements is loaded exactly once (but see SumFixed,
// and fold_encoded.cc). No other process may write to the other arrays, except replies, which are
// only written. Arrays must not overlap unless documented.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/element_type.h"
#include "common/base/encoding.h"
#include "common/base/reduction.h"
#include "common/optimizer/optimizer_table.h"

namespace phub::simd {

using numeric::ElementType;
using numeric::Reduction;
using numeric::ToString;
using optimizer::Coefficients;
using optimizer::kStatesMax;
using optimizer::Optimizer;
using optimizer::OptimizerArguments;
using optimizer::StateCount;
using optimizer::ToString;

// The operands of a reduction, in rank order: `folded`, if not null, is the result of Fold() over a
// prefix of the ranks, in the accumulation type. `inputs` are the other ranks', in the wire type.
// REQUIRES: at least one term, at most kRanksMax inputs.
struct Terms {
  const std::byte* folded = nullptr;
  std::span<const std::byte* const> inputs;
};

// The inputs of a fold are payloads of chunks of `count` elements in an encoding. The fold combines
// elements from `first` on; everything else than the inputs is addressed from there.
// REQUIRES: f32; a sum or mean.
struct Encoded {
  numeric::GradientEncoding encoding = {};
  std::size_t count = 0;
  std::size_t first = 0;
};

// Sets `accumulator` to the left fold of the terms, before a mean's division. It may be
// terms.folded. Folding any prefix of the terms first gives the same bits. Returns true if the
// accumulator contains a NaN or an infinity.
bool Fold(ElementType wire, Reduction reduction, const Terms& terms, std::size_t count,
          std::byte* accumulator, const Encoded& encoded = {});

// Sets `sum`, an array of f32, to the sum of all ranks' gradients in fixed point, before a mean's
// division: see common/aggregation/fixed_point.h. Every `block` elements have an exponent of their
// own. The bits depend on the gradients, their number and `block` only, not on their order. Returns
// true if the sum contains a NaN or an infinity. Elements are loaded up to three times: if another
// process writes to a gradient meanwhile, its block may have any values, and may not be reported.
// REQUIRES: wire is f32, f16 or bf16; 1 to aggregation::kFixedRanksMax gradients; block > 0.
bool SumFixed(ElementType wire, std::size_t block, std::span<const std::byte* const> gradients,
              std::size_t count, std::byte* sum);

struct Round {
  ElementType wire = ElementType::kF32;   // type of the terms' inputs
  ElementType type = ElementType::kF32;   // type of the parameters
  ElementType reply = ElementType::kF32;  // type of the replies
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  std::uint32_t ranks = 1;  // the divisor of a mean
  OptimizerArguments arguments;
  Encoded encoded = {};  // how the inputs are encoded; by default not at all
};
// False if an integer round has a mean or an optimizer, if wire or reply are not wire types of the
// parameters' type (numeric::IsWireTypeOf), if encoded inputs are not f32 or not added, or if ranks
// is 0. Integers are never clipped.
bool IsSupported(const Round& round);

struct RoundMemory {
  const std::byte* parameters = nullptr;  // the old version, in `type`; unused without optimizer
  // The new version, in `type`. May be `parameters`; without optimizer, may be null.
  std::byte* next_parameters = nullptr;
  // In the accumulation type, updated in place; the first StateCount(optimizer) are used.
  std::array<std::byte*, kStatesMax> state{};
  // Additional copies of the new version, each in `reply`, written in the same pass.
  std::span<std::byte* const> replies;
  // Writes results with non-temporal stores, bypassing the caches: replies and, without optimizer,
  // next_parameters. Use it for results that leave the caches before they are read. It reduces
  // memory traffic by a third, because no cache line is read before it is overwritten. An
  // immediate reader has to wait for memory. Ignored for arrays not aligned to 64 bytes.
  bool streams_results = false;
};

// Combines the terms, divides (for a mean), clips, runs the optimizer and stores the new version in
// all outputs. Returns true if a combined element is NaN or infinite (see Screening).
bool ApplyRound(const Round& round, const Terms& terms, std::size_t count,
                const RoundMemory& memory);

// For clipping by a norm; plain loops, not dispatched. Divides an array of the accumulation type
// (f32 or f64) by `divisor` in place. Returns the sum of its squares in f64. The order of the sum
// depends only on `count`.
double DivideAndSquare(ElementType accumulation, std::uint32_t divisor, std::byte* array,
                       std::size_t count);
// Multiplies every element by `factor`, which is first rounded to the element's type.
void Scale(ElementType accumulation, double factor, std::byte* array, std::size_t count);

// Whether an array, or an encoded chunk, contains a NaN or an infinity. Used to find the rank that
// sent one.
bool HasNonFinite(ElementType type, const std::byte* array, std::size_t count,
                  const Encoded& encoded = {});

// Copies to the same type (the same bits), or converts between f32, f16 and bf16. Widening is
// exact and keeps NaN payloads. Narrowing rounds to nearest even.
void Convert(ElementType from, const std::byte* input, ElementType to, std::byte* output,
             std::size_t count);

// Sets the calling thread to round to nearest even and to keep denormals. Every computing thread
// must call it once, because a library may have changed the mode.
void SetFloatingPointMode();

// The instruction set in use ("AVX2"), and all sets that this machine supports.
const char* TargetName();
std::vector<const char*> SupportedTargetNames();

}  // namespace phub::simd
