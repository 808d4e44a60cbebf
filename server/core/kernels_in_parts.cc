#include "server/core/kernels_in_parts.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "common/base/check.h"
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

// Encoded inputs are decoded from an element on.
simd::Encoded EncodedFrom(const simd::Encoded& encoded, std::size_t first) {
  return {encoded.encoding, encoded.count, encoded.first + first};
}

// The terms from an element on.
class TermsFrom {
 public:
  TermsFrom(const simd::Terms& terms, simd::ElementType wire, simd::ElementType accumulation,
            std::size_t first, bool is_encoded = false) {
    for (std::size_t i = 0; i < terms.inputs.size(); ++i) {
      inputs_[i] = is_encoded ? terms.inputs[i] : At(terms.inputs[i], wire, first);
    }
    terms_ = {At(terms.folded, accumulation, first), {inputs_.data(), terms.inputs.size()}};
  }
  const simd::Terms& terms() const { return terms_; }

 private:
  std::array<const std::byte*, kRanksMax> inputs_;
  simd::Terms terms_;
};

// The memory of a round from an element on.
class MemoryFrom {
 public:
  MemoryFrom(const simd::RoundMemory& memory, const simd::Round& round, std::size_t first)
      : memory_(memory) {
    memory_.parameters = At(memory.parameters, round.type, first);
    memory_.next_parameters = At(memory.next_parameters, round.type, first);
    for (std::byte*& state : memory_.state) state = At(state, AccumulationType(round.type), first);
    for (std::size_t i = 0; i < memory.replies.size(); ++i) {
      replies_[i] = At(memory.replies[i], round.reply, first);
    }
    memory_.replies = {replies_.data(), memory.replies.size()};
  }
  MemoryFrom(const MemoryFrom&) = delete;
  MemoryFrom& operator=(const MemoryFrom&) = delete;
  const simd::RoundMemory& memory() const { return memory_; }

 private:
  std::array<std::byte*, kRanksMax + 1> replies_;
  simd::RoundMemory memory_;
};

// Elements that are summed in fixed point before they are applied: they fit into an L1 cache.
constexpr std::size_t kSummedMax = 4096;

// A multiple of `block` up to kSummedMax, preferably one that keeps arrays aligned to cache lines.
std::size_t SummedAtOnce(std::size_t block) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t unit = std::lcm(block, kLine);
  return unit <= kSummedMax ? kSummedMax / unit * unit : kSummedMax / block * block;
}

// Calls part(first, size, gradients from `first` on) for consecutive parts. Notes the work.
template <typename Part>
void ForEachSummed(LongWork* work, simd::ElementType wire, std::size_t block,
                   std::span<const std::byte* const> gradients, std::size_t count, Part&& part) {
  PHUB_CHECK(block > 0 && block <= kSummedMax, "block={}", block);
  const std::size_t step = SummedAtOnce(block);
  for (std::size_t first = 0; first < count; first += step) {
    const std::size_t size = std::min(step, count - first);
    const TermsFrom from({nullptr, gradients}, wire, AccumulationType(wire), first);
    part(first, size, from.terms().inputs);
    // The gradients are read twice. The end of a whole round is noted anyway.
    if (work == nullptr || first + size >= count) continue;
    work->Note(2 * size * ElementBytes(wire) * gradients.size());
  }
}

}  // namespace

bool FoldInParts(LongWork* work, simd::ElementType wire, simd::Reduction reduction,
                 const simd::Terms& terms, std::size_t count, std::byte* accumulator,
                 const simd::Encoded& encoded) {
  PHUB_ON_CORE_LOOP();
  const simd::ElementType accumulation = AccumulationType(wire);
  const std::uint64_t bytes =
      terms.inputs.size() * ElementBytes(wire) + 2 * ElementBytes(accumulation);
  bool non_finite = false;
  InParts(work, count, bytes, [&](std::size_t first, std::size_t size) {
    if (size == count) {
      non_finite = simd::Fold(wire, reduction, terms, count, accumulator, encoded);
      return;
    }
    const TermsFrom from(terms, wire, accumulation, first, !encoded.encoding.none());
    non_finite |= simd::Fold(wire, reduction, from.terms(), size,
                             At(accumulator, accumulation, first), EncodedFrom(encoded, first));
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
  bool non_finite = false;
  InParts(work, count, bytes, [&](std::size_t first, std::size_t size) {
    if (size == count) {
      non_finite = simd::ApplyRound(round, terms, count, memory);
      return;
    }
    const TermsFrom from(terms, round.wire, accumulation, first, !round.encoded.encoding.none());
    const MemoryFrom part(memory, round, first);
    simd::Round from_there = round;
    from_there.encoded = EncodedFrom(round.encoded, first);
    non_finite |= simd::ApplyRound(from_there, from.terms(), size, part.memory());
  });
  return non_finite;
}

bool SumFixedInParts(LongWork* work, simd::ElementType wire, std::uint32_t block,
                     std::span<const std::byte* const> gradients, std::size_t count,
                     std::byte* sum) {
  PHUB_ON_CORE_LOOP();
  bool non_finite = false;
  ForEachSummed(work, wire, block, gradients, count,
                [&](std::size_t first, std::size_t size, std::span<const std::byte* const> part) {
                  std::byte* const to = At(sum, simd::ElementType::kF32, first);
                  non_finite |= simd::SumFixed(wire, block, part, size, to);
                });
  return non_finite;
}

bool ApplyFixedInParts(LongWork* work, const simd::Round& round, std::uint32_t block,
                       std::span<const std::byte* const> gradients, std::size_t count,
                       const simd::RoundMemory& memory) {
  PHUB_ON_CORE_LOOP();
  alignas(64) std::array<std::byte, kSummedMax * sizeof(float)> sum;
  bool non_finite = false;
  ForEachSummed(work, round.wire, block, gradients, count,
                [&](std::size_t first, std::size_t size, std::span<const std::byte* const> part) {
                  non_finite |= simd::SumFixed(round.wire, block, part, size, sum.data());
                  const MemoryFrom from(memory, round, first);
                  simd::ApplyRound(round, {sum.data(), {}}, size, from.memory());
                });
  return non_finite;
}

}  // namespace phub::server
