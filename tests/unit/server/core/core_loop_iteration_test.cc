// Jobs with apply=iteration: a summed chunk waits until every rank has decided.
#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/allocation_counter.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class IterationTest : public CoreLoopTest {
 protected:
  void StartWith(std::uint32_t ranks, std::uint32_t slots, std::uint32_t chunks,
                 Optimizer optimizer = Optimizer::kSgd, Reduction reduction = Reduction::kSum) {
    config_.apply_iteration = true;
    Start(ranks, slots, optimizer, reduction, chunks);
  }
  void PushAll(std::uint64_t iteration, float value) {
    for (std::uint32_t chunk = 0; chunk < shard_->chunk_count; ++chunk) {
      for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
        Push(rank, chunk, iteration, chunk % config_.slots_per_lane, value);
      }
    }
  }
  wire::MessageHeader Decision(std::uint64_t number, double scale = 1.0, bool skip = false) const {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::kDecision;
    header.incarnation = config_.incarnation;
    header.membership_epoch = config_.membership_epoch;
    header.iteration = Iteration{number};
    header.value_bits = std::bit_cast<std::uint64_t>(scale);
    if (skip) header.flags = wire::kFlagSkip;
    return header;
  }
  void Decide(std::uint32_t rank, const wire::MessageHeader& decision) {
    transport_.Deliver(lanes_[rank], decision);
    for (int i = 0; i < 4; ++i) loop_.RunOnce();
  }
  std::vector<ScriptedTransport::Posted> Summed() { return Posted(wire::MessageKind::kSummed); }
};

TEST_F(IterationTest, NothingIsAppliedBeforeEveryRankHasDecided) {
  StartWith(2, 4, 2);
  PushAll(1, 1.0f);
  const auto told = Summed();
  ASSERT_EQ(told.size(), 4u);  // two chunks, two ranks
  EXPECT_EQ(told[0].header.iteration, Iteration{1});
  EXPECT_EQ(told[0].header.flags, 0);
  EXPECT_EQ(shard_->iteration.summed_count, 2u);
  EXPECT_EQ(shard_->lanes[0].slots_used, 0u);  // the sums are in other memory
  Decide(0, Decision(1));
  EXPECT_TRUE(Replies().empty());
  Decide(0, Decision(1));  // repeated, as on a new lane
  EXPECT_TRUE(Replies().empty());
  Decide(1, Decision(1));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 4u);
  EXPECT_EQ(replies[0].payload, Filled(-1.0f));  // 0.5 * (1 + 1)
  EXPECT_EQ(shard_->chunks()[0]->reductions, 1u);
  EXPECT_EQ(Count(CoreCounter::decisions), 1u);
}

TEST_F(IterationTest, ACollectiveKeyWaitsForNoDecisionAndNoDecisionWaitsForIt) {
  StartWith(2, 4, 1);
  KeyShardSpec spec;
  spec.key = KeyIndex{1};
  spec.collective = true;
  spec.chunks = {{kElements, 0}};
  std::vector<std::byte> parameters(kElements * sizeof(float));
  spec.parameters[0] = spec.parameters[1] = parameters.data();
  const std::unique_ptr<KeyBatch> batch = MakeKeyBatch(config_, {&spec, 1});
  Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch.get()});
  Push(0, 0, 1, 0, 1.0f);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    Push(0, 1, round, 1, 1.0f);
    Push(1, 1, round, 1, 3.0f);
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 2u);
    EXPECT_EQ(replies[0].payload, Filled(4.0f));
  }
  Push(0, 1, 3, 1, 1.0f);  // a round in flight
  Push(1, 0, 1, 0, 1.0f);
  EXPECT_EQ(Summed().size(), 2u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) Decide(rank, Decision(1));
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(shard_->metrics.iteration.Get(), 1u);
  EXPECT_EQ(shard_->metrics.collectives.iteration.Get(), 2u);
  wire::MessageHeader asks = Gradient(1, 3, 1);
  asks.flags = wire::kFlagSkip;
  transport_.Deliver(lanes_[1], asks, Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(IterationTest, WhatIsSkippedKeepsParametersStateAndSteps) {
  StartWith(2, 4, 1, Optimizer::kMomentum);
  PushAll(1, 1.0f);
  for (std::uint32_t rank = 0; rank < 2; ++rank) Decide(rank, Decision(1));
  const auto first = Replies();
  ASSERT_EQ(first.size(), 2u);
  const Chunk& chunk = *shard_->chunks()[0];
  const std::vector<std::byte> state(chunk.state[0], chunk.state[0] + kElements * sizeof(float));
  PushAll(2, kNan);
  const auto told = Summed();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].header.flags, wire::kFlagNonFinite);
  for (std::uint32_t rank = 0; rank < 2; ++rank) Decide(rank, Decision(2, 1.0, /*skip=*/true));
  const auto second = Replies();
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].payload, first[0].payload);
  EXPECT_EQ(second[0].header.iteration, Iteration{2});
  EXPECT_EQ(chunk.reductions, 1u);
  EXPECT_EQ(std::memcmp(chunk.state[0], state.data(), state.size()), 0);
  EXPECT_EQ(Count(CoreCounter::rounds_skipped), 1u);
}

TEST_F(IterationTest, ARankThatAsksIsPassedOnToAll) {
  StartWith(2, 4, 1);
  wire::MessageHeader asks = Gradient(0, 1, 0);
  asks.flags = wire::kFlagSkip;
  transport_.Deliver(lanes_[1], asks, Filled(1.0f));
  Push(0, 0, 1, 0, 1.0f);
  loop_.RunOnce();
  const auto told = Summed();
  ASSERT_EQ(told.size(), 2u);
  for (const auto& one : told) EXPECT_EQ(one.header.flags, wire::kFlagSkip);
  for (std::uint32_t rank = 0; rank < 2; ++rank) Decide(rank, Decision(1, 1.0, /*skip=*/true));
  Replies();
  // The next iteration starts clean.
  PushAll(2, 1.0f);
  EXPECT_EQ(Summed()[0].header.flags, 0);
}

TEST_F(IterationTest, NormsAreOfTheMeanAndTheScaleComesBeforeTheOptimizer) {
  config_.norms = true;
  StartWith(2, 4, 1, Optimizer::kSgd, Reduction::kMean);
  PushAll(1, 3.0f);
  const auto told = Summed();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(std::bit_cast<double>(told[0].header.value_bits), 9.0 * kElements);
  for (std::uint32_t rank = 0; rank < 2; ++rank) Decide(rank, Decision(1, 0.25));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(-0.375f));  // 0.5 * 0.25 * 3
}

TEST_F(IterationTest, ALaneThatComesAnewIsToldAgainAndADecisionStands) {
  config_.on_loss = LossPolicy::kWait;
  StartWith(2, 4, 1);
  PushAll(1, 1.0f);
  EXPECT_EQ(Summed().size(), 2u);
  Decide(1, Decision(1));
  transport_.Break(lanes_[1], TransportError::kReset);
  loop_.RunOnce();
  Attach(1);
  Push(1, 0, 1, 2, 7.0f);  // a duplicate; the sum does not change
  const auto told = Summed();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].connection, lanes_[1]);
  Decide(0, Decision(1));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].payload, Filled(-1.0f));
  Decide(1, Decision(1));  // it did not know that its decision had arrived
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(IterationTest, WhatFindsTheQueueFullIsToldLater) {
  StartWith(2, 4, 2);
  transport_.set_post_limit(0);
  PushAll(1, 1.0f);
  EXPECT_TRUE(Summed().empty());
  transport_.set_post_limit(100);
  loop_.RunOnce();
  EXPECT_EQ(Summed().size(), 4u);
  EXPECT_EQ(shard_->reply_backlog, 0u);
}

class ImpossibleDecision : public IterationTest,
                           public ::testing::WithParamInterface<std::pair<double, FaultCode>> {};
INSTANTIATE_TEST_SUITE_P(
    Scales, ImpossibleDecision,
    ::testing::Values(std::pair(std::numeric_limits<double>::quiet_NaN(), FaultCode::kDecision),
                      std::pair(-0.5, FaultCode::kDecision), std::pair(1.5, FaultCode::kDecision)));

TEST_P(ImpossibleDecision, IsAFaultOfItsRank) {
  StartWith(2, 4, 1);
  PushAll(1, 1.0f);
  Decide(1, Decision(1, GetParam().first));
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, GetParam().second);
  EXPECT_EQ(fault.source, Rank{1});
}

TEST_F(IterationTest, ADecisionAheadIsAFault) {
  StartWith(2, 4, 1);
  PushAll(1, 1.0f);
  Decide(1, Decision(2));
  EXPECT_EQ(FaultOf(), FaultCode::kDecision);
}

TEST_F(IterationTest, ADecisionBeforeTheSumsIsAFault) {
  StartWith(2, 4, 2);
  Push(0, 0, 1, 0, 1.0f);
  Push(1, 0, 1, 0, 1.0f);
  Decide(0, Decision(1));
  EXPECT_EQ(FaultOf(), FaultCode::kDecision);
  EXPECT_EQ(Count(CoreCounter::refused_decision), 1u);
}

TEST_F(IterationTest, RanksThatDecideDifferentlyAreBothNamed) {
  StartWith(3, 4, 1);
  PushAll(1, 1.0f);
  Decide(1, Decision(1, 0.5));
  Decide(2, Decision(1, 0.25));
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kDecisionMismatch);
  EXPECT_EQ(fault.source, Rank{2});
  EXPECT_EQ(fault.other, Rank{1});
  EXPECT_EQ(shard_->conflict.source.scale, 0.25);
  EXPECT_EQ(shard_->conflict.other.scale, 0.5);
  EXPECT_TRUE(Replies().empty());
}

TEST_F(IterationTest, ARankThatLeavesWithoutDecidingIsAFault) {
  StartWith(2, 4, 1);
  PushAll(1, 1.0f);
  Order({.kind = Command::Kind::kRankLeft, .rank = Rank{1}, .shard = shard_.get()});
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kDepartedRank);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_EQ(fault.other, Rank{0});
  EXPECT_EQ(fault.iteration, Iteration{1});
}

TEST_F(IterationTest, ARankThatLeftBeforeTheSumIsAFault) {
  StartWith(2, 4, 1);
  Push(1, 0, 1, 0, 1.0f);
  Order({.kind = Command::Kind::kRankLeft, .rank = Rank{1}, .shard = shard_.get()});
  Push(0, 0, 1, 0, 1.0f);
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kDepartedRank);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_EQ(fault.other, Rank{0});
  EXPECT_TRUE(Summed().empty());
}

TEST_F(IterationTest, RejectedNumbersEndTheJobBeforeAnythingIsApplied) {
  config_.screening = Screening::kReject;
  StartWith(2, 4, 2);
  PushAll(1, kNan);
  EXPECT_EQ(FaultOf(), FaultCode::kNonFinite);
  EXPECT_TRUE(Summed().empty());
}

TEST_F(IterationTest, AnotherModeKnowsNeitherDecisionsNorWishes) {
  Start(1, 4);
  Decide(0, Decision(1));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(IterationTest, StallsNameWhatNobodyHasPushedAndWhoHasNotDecided) {
  StartWith(2, 4, 2);
  StallReport report;
  report.entries.resize(4);
  for (auto& entry : report.entries) entry.missing.resize(1);
  const auto ask = [&] {
    Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  };
  for (std::uint32_t rank = 0; rank < 2; ++rank) Push(rank, 0, 1, 0, 1.0f);
  ask();
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].chunks_waiting, 1u);
  EXPECT_EQ(report.entries[0].missing[0], 3u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) Push(rank, 1, 1, 1, 1.0f);
  Decide(0, Decision(1));
  ask();
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].chunks_waiting, 2u);
  EXPECT_EQ(report.entries[0].missing[0], 2u);
}

TEST_F(IterationTest, AllocatesNothingAfterAdmission) {
  config_.norms = true;
  StartWith(2, 1, 4, Optimizer::kMomentum, Reduction::kMean);
  transport_.set_keep_posted(false);
  std::size_t inside = 0;
  const auto deliver = [&](std::uint32_t rank, const wire::MessageHeader& header,
                           const std::vector<float>& payload) {
    transport_.Deliver(lanes_[rank], header, payload);
    const std::size_t before = testing::AllocationCount();
    for (int i = 0; i < 3; ++i) loop_.RunOnce();
    inside += testing::AllocationCount() - before;
  };
  for (std::uint64_t iteration = 1; iteration <= 50; ++iteration) {
    for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
      for (const std::uint32_t rank : {0u, 1u}) {
        deliver(rank, Gradient(chunk, iteration, 0), Filled(1.0f));
      }
    }
    for (const std::uint32_t rank : {0u, 1u}) {
      deliver(rank, Decision(iteration, 0.5, iteration % 3 == 0), {});
    }
  }
  EXPECT_EQ(Count(CoreCounter::decisions), 50u);
  EXPECT_EQ(Count(CoreCounter::rounds_skipped), 4u * 16);
  EXPECT_EQ(inside, 0u);
}

TEST_F(IterationTest, ALaneThatIsLostBeforeTheDecisionsLeavesEverythingAsItWas) {
  StartWith(2, 4, 2);
  PushAll(1, 1.0f);
  Decide(0, Decision(1));
  transport_.Break(lanes_[1], TransportError::kReset);
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kLaneLost);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_TRUE(Replies().empty());
  EXPECT_EQ(shard_->chunks()[0]->applied, Iteration{0});
  const std::vector<std::byte> zeros(parameters_[0].size());
  EXPECT_EQ(parameters_[0], zeros);
}

// The memory of waiting sums is reserved when the keys are added.
TEST_F(IterationTest, SumsThatWaitAreCountedWhenKeysAreAdded) {
  StartWith(2, 4, 4);
  const std::uint64_t sums = std::uint64_t{4} * kElements * sizeof(float);
  EXPECT_GE(batch_->memory_bytes, sums + batch_->state.bytes());
  EXPECT_EQ(batch_->accumulators.bytes(), sums);
}

}  // namespace
}  // namespace phub::server
