// The arithmetic of phub: what a round combines, and what becomes of it, in one pass over memory.
// Pure functions, any thread. Dispatched at run time to the widest instruction set of the machine;
// the same bits on every one.
//
// Numbers. Everything is computed in the accumulation type: f32 for f16, bf16 and f32, else the
// type itself. Terms are combined as a left fold in the order given, starting from the first term's
// value (not from zero): ((t0 + t1) + t2) + ... Every operation rounds on its own (no fused
// multiply-add, no approximation, no flush to zero). Halves are widened exactly, and what is stored
// as a half is rounded once, to nearest even, from the accumulation type. A mean divides the
// finished sum once by `ranks`. Clipping comes after that and before everything else. Integers
// wrap. Callers keep the floating-point mode of SetFloatingPointMode().
//
// NaN. Minima and maxima of anything with a NaN are the canonical NaN of the accumulation type
// (positive, quiet, no payload), and -0 < +0. Whatever NaN is stored as a half becomes that half's
// canonical NaN (0x7e00, 0x7fc0). Elsewhere, only which NaN an element becomes (sign, payload) is
// the machine's affair; that it is one is not. Clipping leaves a NaN a NaN.
//
// Screening. Every fold says whether some element of what it combined, in the accumulation type and
// before a mean's division, is NaN or infinite: whatever NaN or infinity a term of a sum or product
// brought in, and finite terms whose sum overflows. Minima and maxima show every NaN, but an
// infinity only where it is the result. Integers are always finite. It costs next to nothing
// (bench/NOTES.md), so there is no way to leave it out.
//
// Memory. Every array has `count` elements of its type and needs no alignment beyond an element's.
// Terms may lie in memory that somebody else is changing: every element of them is loaded once.
// The other arrays must be out of such people's reach, except replies, which are only written.
// Nothing overlaps but where said.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/element_type.h"
#include "common/optimizer/optimizer_table.h"

namespace phub::simd {

using numeric::ElementType;
using optimizer::Coefficients;
using optimizer::kStatesMax;
using optimizer::Optimizer;
using optimizer::OptimizerArguments;
using optimizer::StateCount;
using optimizer::ToString;

enum class Reduction : std::uint8_t { kSum, kMean, kMin, kMax, kProduct };
const char* ToString(Reduction reduction);  // "sum", "mean", "min", "max", "product"

// What is combined, in rank order: what Fold() made of a prefix of the ranks, in the accumulation
// type, if not null; then inputs, in the wire type. At least one of all, at most kRanksMax inputs.
struct Terms {
  const std::byte* folded = nullptr;
  std::span<const std::byte* const> inputs;
};

// accumulator = the left fold of the terms, before a mean's division. It may be terms.folded
// itself. Folding a prefix first, wherever it ends, gives the same bits. True if the accumulator
// now holds a NaN or an infinity.
bool Fold(ElementType wire, Reduction reduction, const Terms& terms, std::size_t count,
          std::byte* accumulator);

struct Round {
  ElementType wire = ElementType::kF32;   // of the terms' inputs
  ElementType type = ElementType::kF32;   // of the parameters
  ElementType reply = ElementType::kF32;  // of the replies
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  std::uint32_t ranks = 1;  // what a mean divides by
  OptimizerArguments arguments;
};
// Integers have no mean and no optimizer (and are not clipped); wire and reply are the parameters'
// type or a half over f32 (numeric::IsWireTypeOf); there is at least one rank.
bool IsSupported(const Round& round);

struct RoundMemory {
  const std::byte* parameters = nullptr;  // the version read, in `type`; unused without optimizer
  // The version written, in `type`. May be `parameters`; without optimizer, may be null.
  std::byte* next_parameters = nullptr;
  // In the accumulation type, read and written in place; the first StateCount(optimizer) are used.
  std::array<std::byte*, kStatesMax> state{};
  // Further copies of the new version, each in `reply`, written in the same pass.
  std::span<std::byte* const> replies;
  // What is only written (replies; without optimizer, next_parameters too) goes past the caches.
  // For results that nobody reads before other data would have driven them out: memory then moves 2
  // bytes for 3, as no cache line is fetched to be overwritten. Whoever reads them at once waits
  // for memory. Heard only where they are aligned to 64 bytes.
  bool streams_results = false;
};

// The terms are combined, divided if it is a mean, clipped, given to the optimizer, and the new
// version is stored everywhere. True if something combined is NaN or infinite (see Screening).
bool ApplyRound(const Round& round, const Terms& terms, std::size_t count,
                const RoundMemory& memory);

// For clipping by a norm; plain loops, not dispatched. An array of the accumulation type (f32 or
// f64) is divided by `divisor` in place; the sum of its squares, in f64, in an order that depends
// on `count` alone.
double DivideAndSquare(ElementType accumulation, std::uint32_t divisor, std::byte* array,
                       std::size_t count);
// Every element times `factor`, which is rounded to the element's type first.
void Scale(ElementType accumulation, double factor, std::byte* array, std::size_t count);

// Whether an array has a NaN or an infinity. For finding out whose a screened round's is.
bool HasNonFinite(ElementType type, const std::byte* array, std::size_t count);

// To the same type (the same bits), or among f32, f16 and bf16: widened exactly, NaN payloads
// included, or rounded to nearest even.
void Convert(ElementType from, const std::byte* input, ElementType to, std::byte* output,
             std::size_t count);

// Round to nearest even, denormals kept: for the calling thread. Every thread that computes calls
// it once, since a library may have changed the mode.
void SetFloatingPointMode();

// The instruction set in use ("AVX2"), and all that this machine could use.
const char* TargetName();
std::vector<const char*> SupportedTargetNames();

}  // namespace phub::simd
