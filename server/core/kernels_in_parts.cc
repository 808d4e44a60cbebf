#include "server/core/kernels_in_parts.h"

#include <array>

#include "common/base/ids.h"
#include "server/core/on_core_loop.h"

namespace phub::server {
namespace {

using numeric::AccumulationType;
using numeric::ElementBytes;

std::byte* At(std::byte* array, simd::ElementType type, std::size_t first) {
  return array == nullptr ? nullptr : array + first * ElementBytes(type);
}
const std::byte* At(const std::byte* array, simd::ElementType type, std::size_t first) {
  return array == nullptr ? nullptr : array + first * ElementBytes(type);
}

// The terms from an element on.
class TermsFrom {
 public:
  TermsFrom(const simd::Terms& terms, simd::ElementType wire, simd::ElementType accumulation,
            std::size_t first) {
    for (std::size_t i = 0; i < terms.inputs.size(); ++i) {
      inputs_[i] = At(terms.inputs[i], wire, first);
    }
    terms_ = {At(terms.folded, accumulation, first), {inputs_.data(), terms.inputs.size()}};
  }
  const simd::Terms& terms() const { return terms_; }

 private:
  std::array<const std::byte*, kRanksMax> inputs_;
  simd::Terms terms_;
};

}  // namespace

bool FoldInParts(LongWork* work, simd::ElementType wire, simd::Reduction reduction,
                 const simd::Terms& terms, std::size_t count, std::byte* accumulator) {
  PHUB_ON_CORE_LOOP();
  const simd::ElementType accumulation = AccumulationType(wire);
  const std::uint64_t bytes =
      terms.inputs.size() * ElementBytes(wire) + 2 * ElementBytes(accumulation);
  bool non_finite = false;
  InParts(work, count, bytes, [&](std::size_t first, std::size_t size) {
    if (size == count) {
      non_finite = simd::Fold(wire, reduction, terms, count, accumulator);
      return;
    }
    const TermsFrom from(terms, wire, accumulation, first);
    non_finite |=
        simd::Fold(wire, reduction, from.terms(), size, At(accumulator, accumulation, first));
  });
  return non_finite;
}

bool ApplyInParts(LongWork* work, const simd::Round& round, const simd::Terms& terms,
                  std::size_t count, const simd::RoundMemory& memory) {
  PHUB_ON_CORE_LOOP();
  const simd::ElementType accumulation = AccumulationType(round.type);
  const std::uint64_t bytes = terms.inputs.size() * ElementBytes(round.wire) +
                              memory.replies.size() * ElementBytes(round.reply) +
                              (3 + simd::kStatesMax) * ElementBytes(accumulation);
  std::array<std::byte*, kRanksMax + 1> replies;
  bool non_finite = false;
  InParts(work, count, bytes, [&](std::size_t first, std::size_t size) {
    if (size == count) {
      non_finite = simd::ApplyRound(round, terms, count, memory);
      return;
    }
    const TermsFrom from(terms, round.wire, accumulation, first);
    simd::RoundMemory part = memory;
    part.parameters = At(memory.parameters, round.type, first);
    part.next_parameters = At(memory.next_parameters, round.type, first);
    for (std::byte*& state : part.state) state = At(state, accumulation, first);
    for (std::size_t i = 0; i < memory.replies.size(); ++i) {
      replies[i] = At(memory.replies[i], round.reply, first);
    }
    part.replies = {replies.data(), memory.replies.size()};
    non_finite |= simd::ApplyRound(round, from.terms(), size, part);
  });
  return non_finite;
}

}  // namespace phub::server
