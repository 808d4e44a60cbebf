// The core loop's reactions to invalid input: a counter, a closed lane, a named fault.
#include <functional>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

TEST_F(CoreLoopTest, RefusesWhatMakesNoSenseAndCountsIt) {
  struct Case {
    const char* what;
    FaultCode code;
    CoreCounter counter;
    std::function<void(wire::MessageHeader&)> spoil;
  };
  const Case cases[] = {
      {"another job", FaultCode::kWrongIncarnation, CoreCounter::refused_incarnation,
       [](auto& h) { h.incarnation.value++; }},
      {"late epoch", FaultCode::kWrongEpoch, CoreCounter::refused_epoch,
       [](auto& h) { h.membership_epoch.value--; }},
      {"chunk out of range", FaultCode::kChunkRange, CoreCounter::refused_chunk_range,
       [](auto& h) { h.chunk.value = 4; }},
      {"iteration 0", FaultCode::kStaleIteration, CoreCounter::refused_stale,
       [](auto& h) { h.iteration.value = 0; }},
      {"two ahead", FaultCode::kIterationGap, CoreCounter::refused_gap,
       [](auto& h) { h.iteration.value = 2; }},
      {"far ahead", FaultCode::kIterationGap, CoreCounter::refused_gap,
       [](auto& h) { h.iteration.value = UINT64_MAX; }},
      {"unknown record", FaultCode::kUnknownHyperParameters, CoreCounter::refused_record,
       [](auto& h) { h.hyper_version.value = 2; }},
      {"record 0", FaultCode::kUnknownHyperParameters, CoreCounter::refused_record,
       [](auto& h) { h.hyper_version.value = 0; }},
      {"a server's kind", FaultCode::kUnexpectedKind, CoreCounter::refused_kind,
       [](auto& h) { h.kind = wire::MessageKind::kParameters; }},
  };
  Start(2, 2);
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.what);
    shard_->faulted = false;
    const std::uint64_t before = Count(bad.counter);
    wire::MessageHeader header = Gradient(0, 1, 0);
    bad.spoil(header);
    const ConnectionId lane = lanes_[1];
    transport_.Deliver(lane, header, Filled(1.0f));
    const Event fault = Next(Event::Kind::kFault);
    EXPECT_EQ(fault.code, bad.code);
    EXPECT_EQ(fault.source, Rank{1});
    EXPECT_EQ(Count(bad.counter), before + 1);
    EXPECT_EQ(shard_->lanes[1].state, Lane::State::kAbsent) << "its lane is closed";
    shard_->faulted = false;
    Attach(1);
  }
  // Expect: rank 0 was not disturbed.
  EXPECT_EQ(shard_->lanes[0].state, Lane::State::kOpen);
}

TEST_F(CoreLoopTest, RefusesASlotThatIsTakenAndAPayloadOfTheWrongSize) {
  Start(2, 2);
  Push(1, 0, 1, 0, 1.0f);
  Push(1, 1, 1, 0, 1.0f);
  EXPECT_EQ(FaultOf(), FaultCode::kSlotOccupied);
  shard_->faulted = false;
  Attach(1);
  transport_.Deliver(lanes_[1], Gradient(0, 1, 1), std::vector<float>(kElements - 1, 0.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kPayloadSize);
  shard_->faulted = false;
  Attach(1);
  transport_.Deliver(lanes_[1], Gradient(0, 1, 1), std::vector<float>{});
  EXPECT_EQ(FaultOf(), FaultCode::kPayloadSize);
}

TEST_F(CoreLoopTest, RanksThatDisagreeAreBothNamed) {
  Start(2, 2, Optimizer::kSgd);
  wire::MessageHeader record = Gradient(0, 0, 0);
  record.hyper_version = HyperVersion{2};
  transport_.DeliverHyperParameters(lanes_[0], record, {.learning_rate = 0.1f});
  transport_.DeliverHyperParameters(lanes_[1], record, {.learning_rate = 0.2f});
  Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kHyperParametersMismatch);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_EQ(fault.other, Rank{0});
  const Conflict& conflict = shard_->conflict;
  EXPECT_TRUE(conflict.source.has_values && conflict.other.has_values);
  EXPECT_EQ(conflict.source.values.learning_rate, 0.2f);
  EXPECT_EQ(conflict.other.values.learning_rate, 0.1f);

  shard_->faulted = false;
  Attach(1);
  Push(0, 0, 1, 0, 1.0f);
  wire::MessageHeader assign = Gradient(0, 1, 0);
  assign.operation = wire::RoundOperation::kAssign;
  assign.root = Rank{1};
  transport_.Deliver(lanes_[1], assign, Filled(1.0f));
  fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kRoundMismatch);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_EQ(fault.other, Rank{0});
  EXPECT_EQ(conflict.source.operation, wire::RoundOperation::kAssign);
  EXPECT_EQ(conflict.source.root, Rank{1});
  EXPECT_TRUE(conflict.other.is_known);
  EXPECT_EQ(conflict.other.operation, wire::RoundOperation::kReduce);

  // Expect: no other rank is named when a root does not exist.
  shard_->faulted = false;
  shard_->conflict = {};
  Attach(1);
  assign.chunk = ChunkIndex{1};
  assign.root = Rank{2};
  transport_.Deliver(lanes_[1], assign, std::vector<float>{});
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
  EXPECT_EQ(conflict.source.root, Rank{2});
  EXPECT_FALSE(conflict.other.is_known);
}

TEST_F(CoreLoopTest, HyperParametersOfAnOpenRoundAreNotOverwritten) {
  Start(2, 2, Optimizer::kSgd);
  Push(0, 0, 1, 0, 1.0f);  // the round is open, with version 1
  wire::MessageHeader announced = Gradient(0, 1, 0);
  for (std::uint32_t version = 2; version < 1 + kHyperVersionsPerKey; ++version) {
    announced.hyper_version = HyperVersion{version};
    transport_.DeliverHyperParameters(lanes_[1], announced, {.learning_rate = 0.1f});
    EXPECT_EQ(FaultOf(), FaultCode::kNone) << version;
  }
  announced.hyper_version = HyperVersion{1 + kHyperVersionsPerKey};
  transport_.DeliverHyperParameters(lanes_[1], announced, {.learning_rate = 0.1f});
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kHyperParametersRange);
  EXPECT_EQ(fault.source, Rank{1});

  // Expect: the round ends with the hyper-parameters that it began with; then there is room again.
  shard_->faulted = false;
  Attach(1);
  Push(1, 0, 1, 0, 1.0f);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
  EXPECT_EQ(shard_->chunks()[0]->applied, Iteration{1});
  transport_.DeliverHyperParameters(lanes_[1], announced, {.learning_rate = 0.1f});
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopTest, ARoundThatNeedsARankThatLeftIsAFault) {
  Start(2, 2);
  Push(0, 0, 1, 0, 1.0f);
  Order({.kind = Command::Kind::kRankLeft, .rank = Rank{1}, .shard = shard_.get()});
  Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kDepartedRank);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_EQ(fault.other, Rank{0});
}

// For example, the kernel has no watches for epoll left.
TEST_F(CoreLoopTest, ALaneThatTheTransportCannotServeIsRefusedAndOthersGoOn) {
  Start(2, 2);
  Push(0, 0, 1, 0, 1.0f);
  transport_.set_adopts_nothing(true);
  Attach(1);
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kLaneLost);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_TRUE(fault.refused);
  EXPECT_EQ(fault.connection, &endpoint_);
  const Event closed = Next(Event::Kind::kLaneClosed);
  EXPECT_TRUE(closed.refused);
  EXPECT_EQ(closed.source, Rank{1});
  EXPECT_EQ(shard_->lanes[1].state, Lane::State::kAbsent);
  EXPECT_EQ(shard_->lanes[0].state, Lane::State::kOpen);
  transport_.set_adopts_nothing(false);
  shard_->faulted = false;
  Attach(1);
  EXPECT_EQ(shard_->lanes[1].state, Lane::State::kOpen);
}

TEST_F(CoreLoopTest, ARankThatLeftMayCloseItsLane) {
  Start(2, 2);
  Order({.kind = Command::Kind::kRankLeft, .rank = Rank{1}, .shard = shard_.get()});
  transport_.Break(lanes_[1], TransportError::kPeerClosed);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
  Push(0, 0, 1, 0, 1.0f);  // now rank 0 pushes a round that can never complete
  EXPECT_EQ(FaultOf(), FaultCode::kDepartedRank);
}

}  // namespace
}  // namespace phub::server
