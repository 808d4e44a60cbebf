// Jobs with apply=iteration: the engine decides once every chunk is summed, announces that on every
// lane, and accepts replies only then.
#include <bit>
#include <cmath>
#include <limits>

#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

class EngineIterationTest : public EngineTest {
 protected:
  // Two keys of two chunks each, one chunk on each of two lanes.
  void StartWith(double clip_norm, bool skip_nonfinite) {
    iteration_ = {.clip_norm = clip_norm, .skip_nonfinite = skip_nonfinite};
    apply_iteration_ = true;
    Start(2, 4);
    a_ = &AddKey({0, 1});
    b_ = &AddKey({0, 1});
  }
  void PushBoth() {
    Push(*a_);
    Push(*b_);
    RunAndTake();
  }
  void Summed(std::size_t connection, std::uint32_t chunk, std::uint64_t iteration,
              double squared_norm, std::uint8_t flags = 0) {
    wire::MessageHeader header = FromDaemon(wire::MessageKind::kSummed, chunk);
    header.iteration = Iteration{iteration};
    header.value_bits = std::bit_cast<std::uint64_t>(squared_norm);
    header.flags = flags;
    transport_.Deliver(connection, header, {});
  }
  // A connection has the number of its lane until it is replaced.
  void SumAll(std::uint64_t iteration, double squared_norm, std::uint8_t flags_of_last = 0) {
    Summed(0, 0, iteration, squared_norm);
    Summed(0, 1, iteration, squared_norm);
    Summed(1, 0, iteration, squared_norm);
    Summed(1, 1, iteration, squared_norm, flags_of_last);
  }
  void ReplyAll(std::uint64_t iteration, float value) {
    for (std::size_t lane = 0; lane < 2; ++lane) {
      for (std::uint32_t chunk = 0; chunk < 2; ++chunk) Reply(lane, chunk, iteration, value);
    }
    Run();
  }
  std::vector<FakeTransport::Posted> Decisions() {
    std::vector<FakeTransport::Posted> decisions;
    for (auto& one : RunAndTake()) {
      if (one.header.kind == wire::MessageKind::kDecision) decisions.push_back(std::move(one));
    }
    return decisions;
  }
  static double ScaleOf(const FakeTransport::Posted& posted) {
    return std::bit_cast<double>(posted.header.value_bits);
  }

  TestKey* a_ = nullptr;
  TestKey* b_ = nullptr;
};

TEST_F(EngineIterationTest, DecidesOnEveryLaneOnceTheLastChunkIsSummed) {
  StartWith(0.0, false);
  PushBoth();
  Summed(0, 0, 1, 1.0);
  Summed(0, 1, 1, 1.0);
  Summed(1, 0, 1, 1.0);
  EXPECT_TRUE(Decisions().empty());
  EXPECT_EQ(engine_->free_slots(0), 4u);  // summed chunks hold no slot
  Summed(1, 1, 1, 1.0);
  const auto decisions = Decisions();
  ASSERT_EQ(decisions.size(), 2u);
  for (const auto& one : decisions) {
    EXPECT_EQ(one.header.iteration, Iteration{1});
    EXPECT_EQ(one.header.flags, 0);
    EXPECT_EQ(ScaleOf(one), 1.0);
  }
  ReplyAll(1, 5.0f);
  EXPECT_EQ(a_->rounds.complete_count, 1);
  EXPECT_EQ(b_->rounds.complete_count, 1);
  EXPECT_FALSE(a_->rounds.last_skipped);
  EXPECT_EQ(engine_->job_iteration(), 1u);
}

TEST_F(EngineIterationTest, ACollectiveKeyIsInNoIteration) {
  iteration_ = {.clip_norm = 0.0, .skip_nonfinite = true};
  apply_iteration_ = true;
  Start(2, 4);
  a_ = &AddKey({0});
  TestKey& loss = AddKey({1}, 0, {}, 0, /*collective=*/true);
  Push(*a_);
  Push(loss);
  RunAndTake();
  // Its reply needs no decision, and it completes no iteration.
  Reply(1, 0, 1, 9.0f);
  Run();
  EXPECT_EQ(loss.rounds.complete_count, 1);
  EXPECT_EQ(engine_->job_iteration(), 0u);
  Push(loss);
  RunAndTake();
  // The iteration is decided without it, and skipped. The lane without other chunks gets nothing.
  Summed(0, 0, 1, 1.0, wire::kFlagNonFinite);
  EXPECT_EQ(Decisions().size(), 1u);
  Reply(1, 0, 2, 9.0f);
  Reply(0, 0, 1, 0.0f);
  Run();
  EXPECT_TRUE(a_->rounds.last_skipped);
  EXPECT_EQ(loss.rounds.complete_count, 2);
  EXPECT_FALSE(loss.rounds.last_skipped);
  EXPECT_TRUE(lanes_.closed_lanes.empty());
}

TEST_F(EngineIterationTest, ClipsByTheNormOfAllChunks) {
  StartWith(2.0, false);
  PushBoth();
  SumAll(1, 25.0);
  const auto decisions = Decisions();
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(ScaleOf(decisions[0]), 2.0 / 10.0);
  EXPECT_EQ(engine_->outcome().norm, 10.0);
  EXPECT_EQ(engine_->outcome().scale, 0.2);
}

TEST_F(EngineIterationTest, ANormThatIsNotFiniteClipsNothing) {
  StartWith(2.0, false);
  PushBoth();
  SumAll(1, std::numeric_limits<double>::infinity());
  const auto decisions = Decisions();
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(ScaleOf(decisions[0]), 1.0);
  EXPECT_EQ(decisions[0].header.flags, 0);
}

TEST_F(EngineIterationTest, SkipsWhatIsNotFiniteAndCountsNoIteration) {
  StartWith(0.0, true);
  PushBoth();
  SumAll(1, 0.0, wire::kFlagNonFinite);
  const auto decisions = Decisions();
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[1].header.flags, wire::kFlagSkip);
  ReplyAll(1, 0.0f);
  EXPECT_TRUE(a_->rounds.last_skipped);
  EXPECT_EQ(a_->rounds.last_iteration, Iteration{1});
  EXPECT_EQ(engine_->job_iteration(), 0u);
  EXPECT_EQ(engine_->outcome().skipped, 1u);
  PushBoth();
  SumAll(2, 0.0);
  EXPECT_EQ(Decisions().at(0).header.iteration, Iteration{2});
  ReplyAll(2, 1.0f);
  EXPECT_FALSE(a_->rounds.last_skipped);
  EXPECT_EQ(engine_->job_iteration(), 1u);
  EXPECT_EQ(engine_->outcome().decided, 2u);
}

TEST_F(EngineIterationTest, NonFiniteIsAppliedUnlessAskedOtherwise) {
  StartWith(0.0, false);
  PushBoth();
  SumAll(1, 0.0, wire::kFlagNonFinite);
  EXPECT_EQ(Decisions().at(0).header.flags, 0);
}

TEST_F(EngineIterationTest, AWishGoesWithThePushAndComesBackWithTheSum) {
  StartWith(0.0, false);
  Command command = PushCommand(*a_);
  command.skip = true;
  Submit(command);
  Push(*b_);
  for (const auto& one : RunAndTake()) {
    EXPECT_EQ(one.header.flags, one.header.chunk == ChunkIndex{0} ? wire::kFlagSkip : 0);
  }
  SumAll(1, 0.0, wire::kFlagSkip);
  EXPECT_EQ(Decisions().at(0).header.flags, wire::kFlagSkip);
}

TEST_F(EngineIterationTest, ALaneThatComesAnewHearsTheDecisionAgain) {
  StartWith(2.0, false);
  PushBoth();
  SumAll(1, 25.0);
  EXPECT_EQ(Decisions().size(), 2u);
  transport_.Break(1, transport::TransportError::kReset);
  Run();
  Attach(1);
  const auto decisions = Decisions();
  ASSERT_EQ(decisions.size(), 1u);
  EXPECT_EQ(decisions[0].connection.index, 2u);
  EXPECT_EQ(ScaleOf(decisions[0]), 0.2);
  // A repetition of what it knows; then the replies.
  Summed(2, 0, 1, 25.0);
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    Reply(0, chunk, 1, 1.0f);
    Reply(2, chunk, 1, 1.0f);
  }
  Run();
  EXPECT_EQ(a_->rounds.complete_count, 1);
  EXPECT_EQ(b_->rounds.complete_count, 1);
  EXPECT_TRUE(lanes_.closed_lanes.size() == 1);
}

TEST_F(EngineIterationTest, AFullQueueHoldsTheDecisionBackForAWhile) {
  StartWith(0.0, false);
  PushBoth();
  transport_.SetPostLimit(0);
  SumAll(1, 1.0);
  EXPECT_TRUE(Decisions().empty());
  transport_.SetPostLimit(100);
  EXPECT_EQ(Decisions().size(), 2u);
}

TEST_F(EngineIterationTest, AReplyToWhatIsNotSummedBreaksTheLane) {
  StartWith(0.0, false);
  PushBoth();
  Reply(0, 0, 1, 1.0f);
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kNotDecided);
}

TEST_F(EngineIterationTest, AReplyToWhatIsSummedAndNotDecidedBreaksTheLane) {
  StartWith(0.0, false);
  PushBoth();
  Summed(0, 0, 1, 1.0);  // other sums are missing
  Reply(0, 0, 1, 1.0f);
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kNotDecided);
}

TEST_F(EngineIterationTest, ASumOfAnotherRoundBreaksTheLane) {
  StartWith(0.0, false);
  PushBoth();
  Summed(0, 0, 2, 1.0);
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kIteration);
}

TEST_F(EngineIterationTest, ASumThatNobodyAskedForBreaksTheLane) {
  Start(1, 4);
  TestKey& key = AddKey({0});
  Push(key);
  RunAndTake();
  Summed(0, 0, 1, 1.0);  // in a job that applies chunk by chunk
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kNotAsked);
}

// A lane that receives its first chunks late counts its decisions from there.
TEST_F(EngineIterationTest, DecisionsAreNumberedPerLane) {
  apply_iteration_ = true;
  Start(2, 4);
  TestKey& first = AddKey({0});
  Push(first);
  RunAndTake();
  Summed(0, 0, 1, 1.0);
  EXPECT_EQ(Decisions().size(), 1u);
  Reply(0, 0, 1, 1.0f);
  Run();
  TestKey& second = AddKey({1});
  Push(first);
  Push(second);
  RunAndTake();
  Summed(0, 0, 2, 1.0);
  Summed(1, 0, 1, 1.0);
  const auto decisions = Decisions();
  ASSERT_EQ(decisions.size(), 2u);
  EXPECT_EQ(decisions[0].header.iteration, Iteration{2});
  EXPECT_EQ(decisions[1].header.iteration, Iteration{1});
}

}  // namespace
}  // namespace phub::client
