#include "common/simd/kernels.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/simd/blocks.h"

namespace phub::simd {
namespace {

using numeric::ElementBytes;

// Bytes of a block in the accumulation type. With twice as many, the block and the streamed rows
// exceed the L1 cache; with half as many, calls cost too much (momentum on 4 and 8 rows of f32,
// Zen 3).
constexpr std::size_t kRoundBlockBytes = 4096;

void CheckTerms(const Terms& terms) {
  PHUB_CHECK(terms.folded != nullptr || !terms.inputs.empty());
  PHUB_CHECK(terms.inputs.size() <= kRanksMax, "inputs={}", terms.inputs.size());
}

void CheckRound(const Round& round, const Terms& terms, const RoundMemory& memory) {
  CheckTerms(terms);
  PHUB_CHECK(IsSupported(round), "type={} wire={} reply={} reduction={} optimizer={} ranks={}",
             numeric::ToString(round.type), numeric::ToString(round.wire),
             numeric::ToString(round.reply), ToString(round.reduction), ToString(round.optimizer),
             round.ranks);
  if (round.optimizer == Optimizer::kNone) return;
  PHUB_CHECK(memory.parameters != nullptr && memory.next_parameters != nullptr);
  const std::size_t state_count = StateCount(round.optimizer);
  for (std::size_t i = 0; i < state_count; ++i) {
    PHUB_CHECK(memory.state[i] != nullptr, "optimizer={} state={}", ToString(round.optimizer), i);
  }
}

const Encoded* EncodedIn(const Round& round) {
  return round.encoded.encoding.none() ? nullptr : &round.encoded;
}

// Runs a round block by block. Intermediate results of a block stay in the L1 cache, and every
// array is read from memory only once.
class BlockwiseRound {
 public:
  BlockwiseRound(const Round& round, const Terms& terms, const RoundMemory& memory)
      : round_(round),
        terms_(terms),
        memory_(memory),
        accumulation_(numeric::AccumulationType(round.type)),
        updates_(round.optimizer != Optimizer::kNone),
        state_count_(StateCount(round.optimizer)),
        fuses_(CanFoldAndUpdate(round, memory)),
        stores_to_all_(CanFoldToAll(round, memory)),
        clips_(round.arguments.clip_value > 0.0 && numeric::IsFloating(round.type)),
        combination_{round.wire, round.reduction, static_cast<double>(round.ranks),
                     !updates_ && !clips_ && numeric::IsHalf(round.type), EncodedIn(round)} {
    if (updates_) coefficients_ = optimizer::CoefficientsOf(round.optimizer, round.arguments);
  }

  // True if the round has no intermediate results: a block may then have any size.
  bool TakesAnyRange() const {
    if (stores_to_all_) return true;
    if (fuses_) return memory_.replies.empty() || FusesReplies();
    const bool only_combines = memory_.replies.empty() && !clips_ && !updates_;
    return only_combines && CombinesInPlace();
  }

  // True if a combined element is NaN or infinite.
  bool Apply(Range block) {
    if (stores_to_all_) return FoldToAll(combination_, terms_, block, memory_);
    const Values values = updates_ ? CombineAndUpdate(block) : Combine(block);
    std::byte* const next = Next(block);
    if (next != nullptr && values.at != next) {
      Store(values, round_.type, {&next, 1}, 0, block.size());
    }
    if (!FusesReplies()) {
      Store(values, round_.reply, memory_.replies, block.begin, block.size());
    }
    return values.non_finite;
  }

 private:
  struct Values {
    const std::byte* at;
    ElementType type;
    bool non_finite;  // before division, clipping and the optimizer
  };

  bool FusesReplies() const { return fuses_ && numeric::IsHalf(round_.wire); }

  std::byte* Next(Range block) const {
    if (memory_.next_parameters == nullptr) return nullptr;
    return memory_.next_parameters + block.begin * ElementBytes(round_.type);
  }

  // Without optimizer: whether the fold can write directly to next_parameters.
  bool CombinesInPlace() const {
    return memory_.next_parameters != nullptr && !memory_.streams_results &&
           (combination_.narrows || round_.type == accumulation_);
  }

  Values Combine(Range block) {
    const ElementType type = combination_.narrows ? round_.type : accumulation_;
    std::byte* const values = CombinesInPlace() ? Next(block) : values_;
    const bool non_finite = FoldRange(combination_, terms_, block, values);
    if (clips_) ClipGradient(accumulation_, round_.arguments.clip_value, values, block.size());
    return {values, type, non_finite};
  }

  Values CombineAndUpdate(Range block) {
    if (fuses_) {
      const bool found =
          FoldAndUpdate(combination_, round_.optimizer, coefficients_, terms_, block, memory_);
      return {Next(block), accumulation_, found};
    }
    const bool non_finite = FoldRange(combination_, terms_, block, gradient_);
    if (clips_) ClipGradient(accumulation_, round_.arguments.clip_value, gradient_, block.size());
    const bool widens = round_.type != accumulation_;
    UpdateArrays arrays{gradient_, memory_.parameters + block.begin * ElementBytes(round_.type),
                        widens ? values_ : Next(block), memory_.state};
    if (widens) {
      Convert(round_.type, arrays.parameters, accumulation_, values_, block.size());
      arrays.parameters = values_;
    }
    for (std::size_t i = 0; i < state_count_; ++i) {
      arrays.state[i] += block.begin * ElementBytes(accumulation_);
    }
    Update(accumulation_, round_.optimizer, coefficients_, arrays, block.size());
    return {arrays.next, accumulation_, non_finite};
  }

  // Writes elements [begin, begin + count) of arrays of `type`, and never reads those arrays.
  void Store(Values values, ElementType type, std::span<std::byte* const> arrays, std::size_t begin,
             std::size_t count) {
    const std::size_t bytes = count * ElementBytes(type);
    const bool streams = memory_.streams_results && !(updates_ && type == round_.type);
    if (values.type != type && arrays.size() == 1 && !streams) {
      return Convert(values.type, values.at, type, arrays[0] + begin * ElementBytes(type), count);
    }
    if (values.type != type && !arrays.empty()) {
      Convert(values.type, values.at, type, converted_, count);
      values.at = converted_;
    }
    for (std::byte* const array : arrays) {
      std::byte* const to = array + begin * ElementBytes(type);
      if (streams) {
        StreamCopy(values.at, to, bytes);
      } else {
        std::memcpy(to, values.at, bytes);
      }
    }
  }

  const Round& round_;
  const Terms& terms_;
  const RoundMemory& memory_;
  ElementType accumulation_;
  bool updates_;
  std::size_t state_count_;
  bool fuses_;
  bool stores_to_all_;
  bool clips_;
  Combination combination_;
  Coefficients coefficients_;
  alignas(64) std::byte gradient_[kRoundBlockBytes];
  alignas(64) std::byte values_[kRoundBlockBytes];
  alignas(64) std::byte converted_[kRoundBlockBytes / 2];  // halves
};

}  // namespace

bool IsSupported(const Round& round) {
  if (!numeric::IsWireTypeOf(round.wire, round.type) ||
      !numeric::IsWireTypeOf(round.reply, round.type) || round.ranks == 0) {
    return false;
  }
  if (!round.encoded.encoding.none()) {
    const bool adds = round.reduction == Reduction::kSum || round.reduction == Reduction::kMean;
    if (!adds || round.type != ElementType::kF32 || round.wire != ElementType::kF32) return false;
  }
  return numeric::IsReductionOf(round.reduction, round.type) &&
         (numeric::IsFloating(round.type) || round.optimizer == Optimizer::kNone);
}

bool FoldRange(const Combination& combination, const Terms& terms, Range range, std::byte* output) {
  if (combination.encoded != nullptr && !terms.inputs.empty()) {
    return FoldEncodedRange(combination, terms, range, output);
  }
  if (numeric::IsHalf(combination.wire)) {
    return FoldHalfRange(combination, terms, range, output);
  }
  return numeric::IsFloating(combination.wire)
             ? FoldFloatRange(combination, terms, range, output)
             : FoldIntegerRange(combination, terms, range, output);
}

bool Fold(ElementType wire, Reduction reduction, const Terms& terms, std::size_t count,
          std::byte* accumulator, const Encoded& encoded) {
  CheckTerms(terms);
  const Reduction undivided = reduction == Reduction::kMean ? Reduction::kSum : reduction;
  return FoldRange({.wire = wire,
                    .reduction = undivided,
                    .divisor = 1.0,
                    .encoded = encoded.encoding.none() ? nullptr : &encoded},
                   terms, {0, count}, accumulator);
}

bool HasNonFinite(ElementType type, const std::byte* array, std::size_t count,
                  const Encoded& encoded) {
  alignas(64) std::byte values[kRoundBlockBytes];
  const std::size_t block = kRoundBlockBytes / ElementBytes(numeric::AccumulationType(type));
  const Terms terms{nullptr, {&array, 1}};
  for (std::size_t begin = 0; begin < count; begin += block) {
    const Range range{begin, std::min(count, begin + block)};
    const Combination combination{.wire = type,
                                  .reduction = Reduction::kSum,
                                  .divisor = 1.0,
                                  .encoded = encoded.encoding.none() ? nullptr : &encoded};
    if (FoldRange(combination, terms, range, values)) return true;
  }
  return false;
}

bool ApplyRound(const Round& round, const Terms& terms, std::size_t count,
                const RoundMemory& memory) {
  CheckRound(round, terms, memory);
  BlockwiseRound blockwise(round, terms, memory);
  const std::size_t block =
      blockwise.TakesAnyRange()
          ? count
          : kRoundBlockBytes / ElementBytes(numeric::AccumulationType(round.type));
  bool non_finite = false;
  for (std::size_t begin = 0; begin < count; begin += block) {
    non_finite |= blockwise.Apply({begin, std::min(count, begin + block)});
  }
  if (memory.streams_results) FinishStreaming();
  return non_finite;
}

}  // namespace phub::simd
