// Compares every type, reduction and optimizer on every instruction set of this machine with the
// reference, bit by bit. (Where kernels.h does not specify which NaN results, all NaNs are equal.)
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simd_reference.h"
#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

using numeric::AccumulationType;

// The properties of a round that tests vary.
struct Shape {
  std::size_t ranks = 3;
  std::size_t folded = 0;  // the first ranks, which Fold() has added already
  std::size_t count = 1;
  std::size_t replies = 0;
  bool in_place = false;
  bool without_next = false;  // replies only
  bool streams = false;       // with streaming stores, to arrays that are aligned for it
  bool aliased = false;       // reply i is written where an input is:
  std::size_t shift = 0;      // that of rank (i + shift) % ranks
  Content content = Content::kOrdinary;
  std::uint64_t seed = 0;
};

std::string NameOf(const Round& round, const Shape& shape) {
  return std::string(numeric::ToString(round.wire)) + " to " + numeric::ToString(round.type) +
         " replied as " + numeric::ToString(round.reply) + ", " + ToString(round.reduction) + ", " +
         ToString(round.optimizer) + " step " + std::to_string(round.arguments.step) + " on " +
         TargetName() + ", ranks " + std::to_string(shape.ranks) + " folded " +
         std::to_string(shape.folded) + (shape.streams ? " streamed" : "") + " count " +
         std::to_string(shape.count) + (shape.aliased ? " aliased" : "") + " shift " +
         std::to_string(shape.shift) + " seed " + std::to_string(shape.seed);
}

// NaN payloads are defined in minima and maxima, where NaNs are canonical, and in halves. Elsewhere
// an instruction may pick either operand's payload.
bool AnyNan(const Round& round, ElementType type) {
  const bool extremum = round.reduction == Reduction::kMin || round.reduction == Reduction::kMax;
  return !numeric::IsHalf(type) && !(extremum && round.optimizer == Optimizer::kNone);
}

// One round's arrays: the kernels' inputs and the reference's results.
template <class T>
class Trial {
 public:
  Trial(const Round& round, const Shape& shape)
      : round_(round),
        shape_(shape),
        random_(shape.seed),
        accumulation_(AccumulationType(round.type)) {
    round_.ranks = static_cast<std::uint32_t>(shape.ranks);
    for (std::size_t r = 0; r < shape.ranks; ++r) {
      inputs_.push_back(Random(round.wire, Array::Use::kRead));
      input_places_.push_back(inputs_.back().data());
    }
    parameters_ = std::make_unique<Array>(Random(round.type, Array::Use::kWritten));
    next_ = std::make_unique<Array>(round.type, shape.count, Array::Use::kWritten,
                                    shape.streams ? 0 : 1);
    for (std::size_t i = 0; i < kStatesMax; ++i) {
      states_.push_back(Random(accumulation_, Array::Use::kWritten));
    }
    for (std::size_t i = 0; i < shape.replies && shape.aliased; ++i) {
      reply_places_.push_back(inputs_[(i + shape.shift) % shape.ranks].data());
    }
    for (std::size_t i = 0; i < shape.replies && !shape.aliased; ++i) {
      replies_.emplace_back(round.reply, shape.count, Array::Use::kWritten, shape.streams ? 0 : i);
      reply_places_.push_back(replies_.back().data());
    }
    ComputeExpected();
  }

  void Run() {
    SCOPED_TRACE(NameOf(round_, shape_));
    Terms terms{nullptr, input_places_};
    Array accumulator(accumulation_, shape_.count, Array::Use::kWritten, 3);
    if (shape_.folded > 0) {
      Fold(round_.wire, round_.reduction, {nullptr, terms.inputs.first(shape_.folded)},
           shape_.count, accumulator.data());
      terms = {accumulator.data(), terms.inputs.subspan(shape_.folded)};
    }
    Array& next = shape_.in_place ? *parameters_ : *next_;
    RoundMemory memory;
    memory.parameters = round_.optimizer == Optimizer::kNone ? nullptr : parameters_->data();
    memory.next_parameters = shape_.without_next ? nullptr : next.data();
    for (std::size_t i = 0; i < StateCount(round_.optimizer); ++i) {
      memory.state[i] = states_[i].data();
    }
    memory.replies = reply_places_;
    memory.streams_results = shape_.streams;
    ApplyRound(round_, terms, shape_.count, memory);

    if (!shape_.without_next) Check("parameters", round_.type, next, *expected_next_);
    for (std::size_t i = 0; i < kStatesMax; ++i) {
      Check("state", accumulation_, states_[i], expected_states_[i]);
    }
    for (const Array& reply : replies_) Check("reply", round_.reply, reply, *expected_reply_);
    for (std::size_t i = 0; i < shape_.replies && shape_.aliased; ++i) {
      Check("reply in place", round_.reply, inputs_[(i + shape_.shift) % shape_.ranks],
            *expected_reply_);
    }
    EXPECT_TRUE(accumulator.MarginsAreUntouched());
  }

 private:
  Array Random(ElementType type, Array::Use use) {
    Array array(type, shape_.count, use, random_.Below(4));
    FillRandom(type, shape_.content, random_, array);
    return array;
  }

  void ComputeExpected() {
    expected_next_ = std::make_unique<Array>(round_.type, shape_.count, Array::Use::kWritten);
    expected_reply_ = std::make_unique<Array>(round_.reply, shape_.count, Array::Use::kWritten);
    expected_states_ = states_;
    for (std::size_t i = 0; i < shape_.count; ++i) {
      const T parameter = reference::Load<T>(round_.type, parameters_->data(), i);
      T state0 = reference::At<T>(states_[0].data(), i);
      T state1 = reference::At<T>(states_[1].data(), i);
      const T value = reference::RoundOf<T>(round_, input_places_, i, parameter, &state0, &state1);
      reference::Store(round_.type, expected_next_->data(), i, value);
      reference::Store(round_.reply, expected_reply_->data(), i, value);
      const std::size_t states = StateCount(round_.optimizer);
      if (states > 0) reference::Put(expected_states_[0].data(), i, state0);
      if (states > 1) reference::Put(expected_states_[1].data(), i, state1);
    }
  }

  void Check(const char* what, ElementType type, const Array& actual, const Array& expected) {
    const std::size_t different =
        FirstDifference(type, actual.data(), expected.data(), shape_.count, AnyNan(round_, type));
    EXPECT_EQ(different, shape_.count) << what;
    EXPECT_TRUE(actual.MarginsAreUntouched()) << what;
  }

  Round round_;
  Shape shape_;
  SeededRandom random_;
  ElementType accumulation_;
  std::vector<Array> inputs_;
  std::vector<const std::byte*> input_places_;
  std::unique_ptr<Array> parameters_;
  std::unique_ptr<Array> next_;
  std::vector<Array> states_;
  std::vector<Array> replies_;
  std::vector<std::byte*> reply_places_;
  std::unique_ptr<Array> expected_next_;
  std::unique_ptr<Array> expected_reply_;
  std::vector<Array> expected_states_;
};

void Try(const Round& round, const Shape& shape) {
  switch (AccumulationType(round.type)) {
    case ElementType::kF32: return Trial<float>(round, shape).Run();
    case ElementType::kF64: return Trial<double>(round, shape).Run();
    case ElementType::kI32: return Trial<std::int32_t>(round, shape).Run();
    case ElementType::kI64: return Trial<std::int64_t>(round, shape).Run();
    default: return Trial<std::uint8_t>(round, shape).Run();
  }
}

OptimizerArguments SomeArguments(std::uint64_t step) {
  OptimizerArguments arguments;
  arguments.learning_rate = 0.1;
  arguments.momentum = 0.9;
  arguments.dampening = 0.3;
  arguments.beta1 = 0.9;
  arguments.beta2 = 0.999;
  arguments.epsilon = 1e-8;
  arguments.learning_rate_decay = 0.01;
  arguments.initial_accumulator = 0.1;
  arguments.alpha = 0.9;
  arguments.step = step;
  return arguments;
}

// All rounds that IsSupported() allows.
void ForEachRound(const std::function<void(const Round&)>& visit) {
  for (const ElementType type : kElementTypes) {
    for (const ElementType wire : kElementTypes) {
      for (const ElementType reply : kElementTypes) {
        for (const Reduction reduction : kReductions) {
          for (const Optimizer optimizer : kOptimizers) {
            const Round round{wire, type, reply, reduction, optimizer, 1, SomeArguments(1)};
            if (IsSupported(round)) visit(round);
          }
        }
      }
    }
  }
}

class RoundsOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, RoundsOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

constexpr std::size_t kCounts[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130};

TEST_P(RoundsOnTarget, EveryTypeReductionAndOptimizerOfAnyLength) {
  SeededRandom random(1);
  ForEachRound([&random](Round round) {
    for (const std::size_t count : kCounts) {
      round.arguments = SomeArguments(random.Chance(1, 4) ? 1 : 1 + random.Below(5000));
      round.arguments.weight_decay = random.Chance(1, 2) ? 0.013 : 0.0;
      round.arguments.clip_value = random.Chance(1, 4) ? 0.75 : 0.0;
      Shape shape;
      shape.ranks = 1 + random.Below(4);
      shape.folded = random.Below(shape.ranks + 1);
      shape.count = count;
      shape.replies = random.Below(3);
      shape.in_place = random.Chance(1, 2);
      shape.without_next = round.optimizer == Optimizer::kNone && random.Chance(1, 4);
      shape.content = random.Chance(1, 3) ? Content::kAnyBits : Content::kOrdinary;
      shape.seed = random.Next();
      Try(round, shape);
    }
  });
}

TEST_P(RoundsOnTarget, EveryTypeReductionAndOptimizerInManyBlocks) {
  SeededRandom random(2);
  ForEachRound([&random](Round round) {
    round.arguments = SomeArguments(1 + random.Below(3));
    round.arguments.weight_decay = random.Chance(1, 2) ? 0.013 : 0.0;
    round.arguments.clip_value = random.Chance(1, 2) ? 0.75 : 0.0;
    Shape shape;
    shape.ranks = 1 + random.Below(2);
    // More than two blocks of each accumulation type (and for bytes more than two blocks of folds
    // in passes).
    shape.count = 16'500 / numeric::ElementBytes(AccumulationType(round.type)) + random.Below(9);
    shape.replies = random.Below(2);
    shape.in_place = random.Chance(1, 2);
    shape.seed = random.Next();
    Try(round, shape);
  });
}

TEST_P(RoundsOnTarget, AnyNumberOfRanksAndEveryFoldedPrefixOfThem) {
  SeededRandom random(3);
  ForEachRound([&random](Round round) {
    const bool plain = round.optimizer == Optimizer::kNone;
    if (!plain && round.optimizer != Optimizer::kMomentum) return;
    if (round.reply != round.type) return;
    round.arguments = SomeArguments(2);
    for (std::size_t ranks = 1; ranks <= 17; ++ranks) {
      for (std::size_t folded = 0; folded <= ranks; ++folded) {
        Shape shape;
        shape.ranks = ranks;
        shape.folded = folded;
        shape.count = 37 + random.Below(8);
        shape.content = ranks % 5 == 0 ? Content::kAnyBits : Content::kOrdinary;
        shape.seed = random.Next();
        Try(round, shape);
      }
    }
  });
}

TEST_P(RoundsOnTarget, AsManyRanksAsThereCanBeAndManyRanksInManyBlocks) {
  SeededRandom random(4);
  ForEachRound([&random](Round round) {
    if (round.reply != round.type) return;
    if (round.optimizer != Optimizer::kNone && round.optimizer != Optimizer::kNesterov) return;
    round.arguments = SomeArguments(2);
    Shape shape;
    shape.ranks = 1024;
    shape.count = 35;
    shape.seed = random.Next();
    Try(round, shape);
    shape.ranks = 9 + random.Below(10);
    shape.folded = random.Below(2);
    shape.count = 8'192 / numeric::ElementBytes(AccumulationType(round.type)) * 2 + 5;
    Try(round, shape);
  });
}

// One reply per worker with its own buffer, with plain and streaming stores.
TEST_P(RoundsOnTarget, RepliesToAll) {
  SeededRandom random(6);
  ForEachRound([&random](Round round) {
    if (round.optimizer != Optimizer::kNone && round.optimizer != Optimizer::kAdam) return;
    round.arguments = SomeArguments(2);
    for (const std::size_t replies : {1, 2, 4, 5, 9}) {
      Shape shape;
      shape.ranks = 1 + random.Below(10);
      shape.folded = random.Chance(1, 2) ? 1 : 0;
      shape.count = random.Chance(1, 2) ? 3'000 + random.Below(99) : random.Below(99);
      shape.replies = replies;
      shape.without_next = round.optimizer == Optimizer::kNone && random.Chance(1, 2);
      shape.streams = random.Chance(2, 3);
      shape.content = random.Chance(1, 4) ? Content::kAnyBits : Content::kOrdinary;
      shape.seed = random.Next();
      Try(round, shape);
    }
  });
}

// A rank may receive the result where its gradient is: each term with each reply.
TEST_P(RoundsOnTarget, RepliesOverInputs) {
  SeededRandom random(8);
  ForEachRound([&random](Round round) {
    if (round.reply != round.wire) return;
    if (round.optimizer != Optimizer::kNone && round.optimizer != Optimizer::kMomentum) return;
    round.arguments = SomeArguments(2);
    for (std::size_t ranks = 1; ranks <= 17; ++ranks) {
      for (std::size_t shift = 0; shift < ranks; ++shift) {
        Shape shape;
        shape.ranks = ranks;
        shape.folded = random.Chance(1, 3) ? random.Below(ranks) : 0;
        shape.replies = random.Chance(1, 2) ? ranks : 1;
        shape.aliased = true;
        shape.shift = shift;
        shape.count = random.Chance(1, 100) ? 3'000 + random.Below(99) : 37 + random.Below(8);
        shape.without_next = round.optimizer == Optimizer::kNone && random.Chance(1, 2);
        shape.content = random.Chance(1, 4) ? Content::kAnyBits : Content::kOrdinary;
        shape.seed = random.Next();
        Try(round, shape);
      }
    }
  });
}

// Results are correct for all arguments: huge, tiny, negative, zero.
TEST_P(RoundsOnTarget, AnyArguments) {
  constexpr double kValues[] = {0.0, -0.5, 1.0, 1e-300, 1e30, 0.999, 1.7};
  SeededRandom random(5);
  const auto any = [&random, &kValues] { return kValues[random.Below(std::size(kValues))]; };
  ForEachRound([&](Round round) {
    if (round.optimizer == Optimizer::kNone || round.reply != round.type) return;
    for (int i = 0; i < 4; ++i) {
      const double beta1 = random.Chance(1, 4) ? 1.0 : 0.0;
      round.arguments = {any(), any(), any(), any(), any(), beta1, 0.5, any(), any(), any(), 1};
      round.arguments.step = 1 + random.Below(3);
      Shape shape;
      shape.count = 19;
      shape.content = Content::kAnyBits;
      shape.seed = random.Next();
      Try(round, shape);
    }
  });
}

}  // namespace
}  // namespace phub::simd
