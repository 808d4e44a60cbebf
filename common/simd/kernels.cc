#include "common/simd/kernels.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/simd/blocks.h"

namespace phub::simd {
namespace {

using numeric::ElementBytes;

// Bytes of a block in the accumulation type. Twice as many share the L1 cache badly with the rows
// that pass through it, half as many cost too many calls (momentum on 4 and 8 rows of f32, Zen 3).
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
  for (std::size_t i = 0; i < StateCount(round.optimizer); ++i) {
    PHUB_CHECK(memory.state[i] != nullptr, "optimizer={} state={}", ToString(round.optimizer), i);
  }
}

// One round over one block after another: what is between two steps of a block stays in the L1
// cache, so that memory is passed over once.
class BlockwiseRound {
 public:
  BlockwiseRound(const Round& round, const Terms& terms, const RoundMemory& memory)
      : round_(round),
        terms_(terms),
        memory_(memory),
        accumulation_(numeric::AccumulationType(round.type)),
        combination_{round.wire, round.reduction, static_cast<double>(round.ranks)},
        fuses_(CanFoldAndUpdate(round)),
        clips_(round.arguments.clip_value > 0.0 && numeric::IsFloating(round.type)) {
    if (round.optimizer != Optimizer::kNone) {
      coefficients_ = CoefficientsOf(round.optimizer, round.arguments);
    }
  }

  // True if nothing has to be kept from one step to the next: then any range is a block.
  bool TakesAnyRange() const {
    if (!memory_.replies.empty() || clips_ || round_.type != accumulation_) return false;
    return fuses_ || (round_.optimizer == Optimizer::kNone && memory_.next_parameters != nullptr);
  }

  void Apply(Range block) {
    const std::byte* const values =
        round_.optimizer == Optimizer::kNone ? Combine(block) : CombineAndUpdate(block);
    std::byte* const next = Next(block);
    if (next != nullptr && values != next) {
      Convert(accumulation_, values, round_.type, next, block.size());
    }
    Reply(values, block);
  }

 private:
  std::byte* Next(Range block) const {
    if (memory_.next_parameters == nullptr) return nullptr;
    return memory_.next_parameters + block.begin * ElementBytes(round_.type);
  }

  // Where the new version is computed, in the accumulation type: in place if it can be.
  std::byte* Values(Range block) {
    std::byte* const next = Next(block);
    return next != nullptr && round_.type == accumulation_ ? next : values_;
  }

  const std::byte* Combine(Range block) {
    std::byte* const values = Values(block);
    FoldRange(combination_, terms_, block, values);
    if (clips_) ClipGradient(accumulation_, round_.arguments.clip_value, values, block.size());
    return values;
  }

  const std::byte* CombineAndUpdate(Range block) {
    if (fuses_) {
      FoldAndUpdate(combination_, round_.optimizer, coefficients_, terms_, block, memory_);
      return Next(block);
    }
    FoldRange(combination_, terms_, block, gradient_);
    if (clips_) ClipGradient(accumulation_, round_.arguments.clip_value, gradient_, block.size());
    UpdateArrays arrays{gradient_, memory_.parameters + block.begin * ElementBytes(round_.type),
                        Values(block), memory_.state};
    if (round_.type != accumulation_) {
      Convert(round_.type, arrays.parameters, accumulation_, values_, block.size());
      arrays.parameters = values_;
    }
    for (std::size_t i = 0; i < StateCount(round_.optimizer); ++i) {
      arrays.state[i] += block.begin * ElementBytes(accumulation_);
    }
    Update(accumulation_, round_.optimizer, coefficients_, arrays, block.size());
    return arrays.next;
  }

  void Reply(const std::byte* values, Range block) {
    if (memory_.replies.empty()) return;
    const std::size_t element_bytes = ElementBytes(round_.reply);
    if (round_.reply != accumulation_) {
      Convert(accumulation_, values, round_.reply, reply_, block.size());
      values = reply_;
    }
    for (std::byte* const reply : memory_.replies) {
      std::memcpy(reply + block.begin * element_bytes, values, block.size() * element_bytes);
    }
  }

  const Round& round_;
  const Terms& terms_;
  const RoundMemory& memory_;
  ElementType accumulation_;
  Combination combination_;
  bool fuses_;
  bool clips_;
  Coefficients coefficients_;
  alignas(64) std::byte gradient_[kRoundBlockBytes];
  alignas(64) std::byte values_[kRoundBlockBytes];
  alignas(64) std::byte reply_[kRoundBlockBytes / 2];  // of halves
};

}  // namespace

const char* ToString(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMean: return "mean";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
    case Reduction::kProduct: return "product";
  }
  return "unknown";
}

bool IsSupported(const Round& round) {
  if (!numeric::IsWireTypeOf(round.wire, round.type) ||
      !numeric::IsWireTypeOf(round.reply, round.type) || round.ranks == 0) {
    return false;
  }
  return numeric::IsFloating(round.type) ||
         (round.reduction != Reduction::kMean && round.optimizer == Optimizer::kNone);
}

void FoldRange(const Combination& combination, const Terms& terms, Range range, std::byte* output) {
  if (numeric::IsHalf(combination.wire)) {
    FoldHalfRange(combination, terms, range, output);
  } else if (numeric::IsFloating(combination.wire)) {
    FoldFloatRange(combination, terms, range, output);
  } else {
    FoldIntegerRange(combination, terms, range, output);
  }
}

void Fold(ElementType wire, Reduction reduction, const Terms& terms, std::size_t count,
          std::byte* accumulator) {
  CheckTerms(terms);
  const Reduction undivided = reduction == Reduction::kMean ? Reduction::kSum : reduction;
  FoldRange({wire, undivided, 1.0}, terms, {0, count}, accumulator);
}

void ApplyRound(const Round& round, const Terms& terms, std::size_t count,
                const RoundMemory& memory) {
  CheckRound(round, terms, memory);
  BlockwiseRound blockwise(round, terms, memory);
  if (blockwise.TakesAnyRange()) return blockwise.Apply({0, count});
  const std::size_t block = kRoundBlockBytes / ElementBytes(numeric::AccumulationType(round.type));
  for (std::size_t begin = 0; begin < count; begin += block) {
    blockwise.Apply({begin, std::min(count, begin + block)});
  }
}

}  // namespace phub::simd
