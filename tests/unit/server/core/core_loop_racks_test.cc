// The core loop in a job that spans racks: rounds, and messages that other racks must not send.
#include <algorithm>
#include <limits>

#include "tests/support/allocation_counter.h"
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

TEST_F(CoreLoopRacks, AwayFromHomeTheSumGoesUpAndTheResultComesDown) {
  StartRack(1);
  const std::uint32_t chunk = ChunkWithHome(2);
  Push(0, chunk, 1, 0, 3);
  EXPECT_FALSE(IsOpen(2, 2 * chunk + 1));
  Push(1, chunk, 1, 0, 4);
  // Expect: the slots are free at once, the sum is on its way, and no rank has a reply.
  EXPECT_EQ(shard_->lanes[0].slots_used, 0u);
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 3u);
  EXPECT_EQ(posted[0].header.kind, wire::MessageKind::kCredit);
  EXPECT_EQ(posted[1].header.kind, wire::MessageKind::kCredit);
  EXPECT_EQ(posted[2].header.kind, wire::MessageKind::kGradient);
  EXPECT_EQ(posted[2].connection, peers_[2]);
  EXPECT_EQ(posted[2].payload, Filled(7));
  EXPECT_TRUE(IsOpen(2, 2 * chunk + 1));

  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(-5));
  EXPECT_FALSE(IsOpen(2, 2 * chunk + 1));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopRacks, TheHomeSumsAllRacksDividesByAllRanksAndSendsToAll) {
  StartRack(0);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(0);
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 0), Filled(20));
  Push(0, chunk, 1, 1, 3);
  Push(1, chunk, 1, 1, 4);
  EXPECT_TRUE(Replies().empty());
  transport_.Deliver(peers_[1], FromPeer(chunk, 1, 0), Filled(9));
  loop_.RunOnce();
  const auto results = Replies();
  ASSERT_EQ(results.size(), 4u);
  for (const auto& result : results) EXPECT_EQ(result.payload, Filled(-0.5f * 36 / 6));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// Expect: once per round and child, and only while it is due.
TEST_F(CoreLoopRacks, APartialIsTakenOnceAndItsSlotIsClosedUntilItWasRead) {
  StartRack(0);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(0);
  ASSERT_TRUE(IsOpen(1, 2 * chunk));
  transport_.Deliver(peers_[1], FromPeer(chunk, 1, 0), Filled(9));
  loop_.RunOnce();
  EXPECT_FALSE(IsOpen(1, 2 * chunk));
  EXPECT_TRUE(IsOpen(2, 2 * chunk));
}

TEST_F(CoreLoopRacks, StallsSayWhichRoundWaitsForOtherRacks) {
  StartRack(1);
  StallReport report;
  report.entries.resize(3);
  for (StallReport::Entry& entry : report.entries) entry.missing.resize(1);
  const auto ask = [&] {
    Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
    EXPECT_EQ(Next(Event::Kind::kStallsReported).report, &report);
  };
  // Expect: a round that no rank here has pushed is reported only if another rack waits for it.
  ask();
  EXPECT_EQ(report.count, 0u);
  report.asked = {KeyIndex{0}, Iteration{1}, 0};
  ask();
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].missing[0], 0b11u);
  EXPECT_FALSE(report.across);
  report.asked = {KeyIndex{0}, Iteration{2}, 0};
  ask();
  EXPECT_EQ(report.count, 0u);
  report.asked.reset();

  const std::uint32_t chunk = ChunkWithHome(2);
  clock_.now = 50;
  Push(0, chunk, 1, 0, 3);
  ask();
  EXPECT_EQ(report.count, 1u);
  EXPECT_FALSE(report.across);
  clock_.now = 60;
  Push(1, chunk, 1, 0, 4);
  ask();
  EXPECT_EQ(report.count, 0u);
  ASSERT_TRUE(report.across);
  EXPECT_EQ(report.across->key, KeyIndex{0});
  EXPECT_EQ(report.across->iteration, Iteration{1});
  EXPECT_EQ(report.across->since, 50);
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  loop_.RunOnce();
  ask();
  EXPECT_FALSE(report.across);
}

struct Forgery {
  FaultCode fault;
  void (*change)(wire::MessageHeader&);
  std::uint32_t elements = kElements;
};

class CoreLoopForgeries : public CoreLoopRacks, public ::testing::WithParamInterface<Forgery> {};

TEST_P(CoreLoopForgeries, AreFaultsOfThatRackAndCounted) {
  StartRack(0);
  LearnHash();
  wire::MessageHeader header = FromPeer(ChunkWithHome(0), 1, 0);
  GetParam().change(header);
  transport_.Deliver(peers_[1], header, std::vector<float>(GetParam().elements, 1.0f));
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, GetParam().fault);
  EXPECT_EQ(event.source, RackIndex{1});
  EXPECT_EQ(Count(CoreCounter::refused_peer), 1u);
}

using Header = wire::MessageHeader;
INSTANTIATE_TEST_SUITE_P(
    All, CoreLoopForgeries,
    ::testing::Values(
        Forgery{FaultCode::kWrongIncarnation, [](Header& h) { h.incarnation = Incarnation{1}; }},
        Forgery{FaultCode::kWrongEpoch, [](Header& h) { h.membership_epoch = MembershipEpoch{9}; }},
        Forgery{FaultCode::kChunkRange, [](Header& h) { h.chunk = ChunkIndex{3}; }},
        Forgery{FaultCode::kSlotRange, [](Header& h) { h.slot.value ^= 1; }, 0},
        Forgery{FaultCode::kIterationGap, [](Header& h) { h.iteration = Iteration{2}; }},
        Forgery{FaultCode::kStaleIteration, [](Header& h) { h.iteration = Iteration{0}; }},
        Forgery{FaultCode::kType, [](Header& h) { h.type = ElementType::kF16; }},
        Forgery{FaultCode::kPayloadSize,
                [](Header& h) { h.operation = wire::RoundOperation::kLoad; }},
        Forgery{FaultCode::kPayloadSize, [](Header&) {}, kElements / 2},
        Forgery{FaultCode::kUnexpectedKind, [](Header& h) { h.kind = wire::MessageKind::kCredit; }},
        Forgery{FaultCode::kNotInPlan,
                [](Header& h) { h.kind = wire::MessageKind::kParameters; }}));

TEST_F(CoreLoopRacks, AChunkThatIsNotBetweenTheTwoRacksIsRefused) {
  StartRack(1);
  LearnHash();
  // Expect: rack 1 is a leaf of the tree with home 0, so no rack may send it partial sums of that
  // tree.
  const std::uint32_t chunk = ChunkWithHome(0);
  EXPECT_FALSE(IsOpen(2, 2 * chunk));
  wire::MessageHeader header = FromPeer(chunk, 1, 0);
  header.slot = SlotIndex{2 * ChunkWithHome(1)};  // an open slot, of another chunk
  transport_.Deliver(peers_[2], header, Filled(1));
  EXPECT_EQ(FaultOf(), FaultCode::kNotInPlan);
}

TEST_F(CoreLoopRacks, RacksWhoseRanksMeanOtherHyperParametersAreFound) {
  StartRack(0);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(0);
  Push(0, chunk, 1, 1, 3);
  Push(1, chunk, 1, 1, 4);
  wire::MessageHeader header = FromPeer(chunk, 1, 0);
  header.reply_address = SharedAddress{hash_ + 1};
  transport_.Deliver(peers_[1], header, Filled(9));
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
}

TEST_F(CoreLoopRacks, ALostPeerLaneIsAFaultOfThatRack) {
  StartRack(0);
  transport_.Break(peers_[2], TransportError::kReset);
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kLaneLost);
  EXPECT_EQ(event.source, RackIndex{2});
}

// Expect: the rack's own sum uses the tenant's bandwidth and turn; another rack's part does not.
TEST_F(CoreLoopRacks, TheOwnSumWaitsForItsTurn) {
  config_.share.bandwidth_bytes = 1'000'000;
  StartRack(1);
  const std::uint32_t chunk = ChunkWithHome(2);
  Push(0, chunk, 1, 0, 3);
  Push(1, chunk, 1, 0, 4);
  EXPECT_TRUE(transport_.TakePosted().empty());
  EXPECT_EQ(shard_->lanes[0].slots_used, 1u);
  EXPECT_EQ(Count(CoreCounter::rounds_queued), 1u);
  for (int i = 0; i < 1000 && shard_->lanes[0].slots_used > 0; ++i) {
    clock_.now = std::max(clock_.now, loop_.NextTimer());
    loop_.RunOnce();
  }
  const auto sent = Posted(wire::MessageKind::kGradient);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].payload, Filled(7));
  EXPECT_EQ(shard_->lanes[0].slots_used, 0u);
  Push(0, ChunkWithHome(1), 1, 1, 3);  // in debt again
  ASSERT_EQ(Count(CoreCounter::throttles), 2u);
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  loop_.RunOnce();
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// Expect: messages that find the queue full are sent later, in order, and once.
TEST_F(CoreLoopRacks, AFullSendQueueDelaysAndLosesNothing) {
  StartRack(1, "sharded-star", 9);
  transport_.set_post_limit(0);
  for (std::uint32_t chunk = 0; chunk < 9; ++chunk) {
    if (HomeOf(chunk) == 1) continue;
    Push(0, chunk, 1, chunk, 1);
    Push(1, chunk, 1, chunk, 1);
  }
  EXPECT_EQ(exchange_->waiting_count, 6u);
  transport_.set_post_limit(SIZE_MAX);
  loop_.RunOnce();
  EXPECT_EQ(exchange_->waiting_count, 0u);
  EXPECT_EQ(Count(CoreCounter::partials_sent), 6u);
}

// Expect: at most one message of each kind waits for a rack that does not read.
TEST_F(CoreLoopRacks, ARackThatHasNotReadAResultSendsNothingOfTheNextRound) {
  StartRack(0);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(0);
  transport_.set_post_limit(0);
  Push(0, chunk, 1, 1, 3);
  Push(1, chunk, 1, 1, 4);
  for (const std::uint32_t rack : {1u, 2u}) {
    transport_.Deliver(peers_[rack], FromPeer(chunk, 1, 0), Filled(9));
  }
  loop_.RunOnce();
  EXPECT_EQ(exchange_->waiting_count, 2u);
  transport_.Deliver(peers_[2], FromPeer(chunk, 2, 0), Filled(9));
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kIterationGap);
  EXPECT_EQ(event.source, RackIndex{2});
}

TEST_F(CoreLoopRacks, NoRoundIsOverWhileTheLastOnesResultWaitsForAnAggregator) {
  StartOver("switch:3,aggregate", 2, "in-switch", 3);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(2);
  transport_.set_post_limit(0);
  Push(0, chunk, 1, 1, 3);
  Push(1, chunk, 1, 1, 4);
  transport_.Deliver(peers_[3], FromPeer(chunk, 1, 0), Filled(9));
  loop_.RunOnce();
  EXPECT_EQ(exchange_->waiting_count, 1u);
  transport_.Deliver(peers_[3], FromPeer(chunk, 2, 0), Filled(9));
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kIterationGap);
  EXPECT_EQ(event.source, RackIndex{3});
}

// Racks below an aggregator may have received the result on another way down.
TEST_F(CoreLoopRacks, AnAggregatorThatHasNotReadAResultMaySendOfTheNextRound) {
  StartOver("racks:2x2@2,aggregate", 4, "in-switch", 4);
  const std::uint32_t chunk = ChunkWithHome(0);
  const exchange::RackTree& tree = *exchange_->chunks()[chunk]->tree;
  const auto below = std::find_if(tree.reduce_children.begin(), tree.reduce_children.end(),
                                  [](const auto& child) { return child.rack.value >= 4; });
  ASSERT_NE(below, tree.reduce_children.end());
  for (const exchange::ReduceChild& child : tree.reduce_children) {
    transport_.Deliver(peers_[child.rack.value], FromPeer(chunk, 1, 0), Filled(1));
  }
  loop_.RunOnce();
  transport_.set_post_limit(0);
  transport_.Deliver(peers_[tree.gather_parent->value], FromPeer(chunk, 1, 1), Filled(1));
  loop_.RunOnce();
  ASSERT_EQ(exchange_->waiting_count, 2u);
  transport_.Deliver(peers_[below->rack.value], FromPeer(chunk, 2, 0), Filled(1));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopRacks, NoResultComesBeforeTheOwnSumHasLeft) {
  StartRack(1);
  const std::uint32_t chunk = ChunkWithHome(2);
  transport_.set_post_limit(0);
  Push(0, chunk, 1, 0, 3);
  Push(1, chunk, 1, 0, 4);
  ASSERT_TRUE(IsOpen(2, 2 * chunk + 1));
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kIterationGap);
  EXPECT_EQ(event.source, RackIndex{2});
}

TEST_F(CoreLoopRacks, ARoundAllocatesNothing) {
  StartRack(0);
  LearnHash();
  transport_.set_keep_posted(false);
  const std::uint32_t chunk = ChunkWithHome(0);
  const std::vector<float> values = Filled(2);
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      transport_.Deliver(lanes_[rank], Gradient(chunk, iteration, 1), values);
    }
    for (const std::uint32_t rack : {1u, 2u}) {
      transport_.Deliver(peers_[rack], FromPeer(chunk, iteration, 0), values);
    }
    const std::size_t before = testing::AllocationCount();
    loop_.RunOnce();
    loop_.RunOnce();
    EXPECT_EQ(testing::AllocationCount(), before) << iteration;
  }
  EXPECT_EQ(exchange_->chunks()[chunk]->arrived, 0u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
