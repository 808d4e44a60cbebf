// The core loop at an aggregator: sums go up, results come down, and there are no ranks that push.
#include "tests/support/allocation_counter.h"
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

class CoreLoopAggregator : public CoreLoopRacks {
 protected:
  void SetUp() override {
    StartAggregator();
    chunk_ = ChunkWithHome(2);
  }
  void PartialFrom(std::uint32_t rack, std::uint64_t iteration, float value) {
    transport_.Deliver(peers_[rack], FromPeer(chunk_, iteration, 0), Filled(value));
    loop_.RunOnce();
  }
  // Expect a fault that names the rack that began or ended a round too early.
  void ExpectTooSoon(std::uint32_t rack) {
    const Event event = Next(Event::Kind::kFault);
    EXPECT_EQ(event.code, FaultCode::kIterationGap);
    EXPECT_EQ(event.source, RackIndex{rack});
  }
  void ResultFromHome(std::uint64_t iteration, float value) {
    transport_.Deliver(peers_[2], FromPeer(chunk_, iteration, 1), Filled(value));
    loop_.RunOnce();
  }

  std::uint32_t chunk_ = 0;
};

TEST_F(CoreLoopAggregator, SendsTheSumOfWhatTheRacksSentAndMultipliesTheResult) {
  hash_ = 4711;
  PartialFrom(1, 1, 4);
  EXPECT_TRUE(transport_.TakePosted().empty());
  PartialFrom(0, 1, 3);
  const auto sent = transport_.TakePosted();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].connection, peers_[2]);
  EXPECT_EQ(sent[0].header.kind, wire::MessageKind::kGradient);
  EXPECT_EQ(sent[0].header.iteration, Iteration{1});
  EXPECT_EQ(sent[0].header.reply_address.value, hash_);
  EXPECT_EQ(sent[0].payload, Filled(7));
  ResultFromHome(1, -5);
  const auto results = Replies();
  ASSERT_EQ(results.size(), 2u);
  for (const auto& result : results) {
    EXPECT_EQ(result.header.iteration, Iteration{1});
    EXPECT_EQ(result.payload, Filled(-5));
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// A rack may have the result of t and send its sum of t+1 before the aggregator has forwarded t's
// result to another rack. If the result takes another way down, this may even happen before the
// aggregator has it.
TEST_F(CoreLoopAggregator, CollectsTheNextRoundBeforeItHasTheResult) {
  PartialFrom(0, 1, 1);
  PartialFrom(1, 1, 2);
  PartialFrom(0, 2, 10);
  ResultFromHome(1, -1);
  PartialFrom(1, 2, 20);
  const auto sums = transport_.TakePosted();
  ASSERT_EQ(sums.size(), 4u);
  EXPECT_EQ(sums[0].payload, Filled(3));
  EXPECT_EQ(sums[3].payload, Filled(30));
  EXPECT_EQ(sums[3].header.iteration, Iteration{2});
  ResultFromHome(2, -2);
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopAggregator, OfABroadcastOnlyTheRootsRackHasPayload) {
  for (const std::uint32_t rack : {0u, 1u}) {
    wire::MessageHeader header = FromPeer(chunk_, 1, 0);
    header.operation = wire::RoundOperation::kAssign;
    header.root = Rank{kRanks};  // from rack 1
    transport_.Deliver(peers_[rack], header, rack == 1 ? Filled(6) : std::vector<float>());
    loop_.RunOnce();
  }
  const auto sent = Posted(wire::MessageKind::kGradient);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].payload, Filled(6));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopAggregator, APartialOfARoundThatIsNotDueIsAFaultOfThatRack) {
  PartialFrom(0, 2, 1);
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kIterationGap);
  EXPECT_EQ(event.source, RackIndex{0});
}

// Expect: at most one message of each kind waits for a rack that does not read.
TEST_F(CoreLoopAggregator, NoRoundBeginsWhileTheSumOfTheLastOneWaits) {
  transport_.set_post_limit(0);
  PartialFrom(0, 1, 1);
  PartialFrom(1, 1, 2);
  EXPECT_EQ(exchange_->waiting_count, 1u);
  PartialFrom(1, 2, 1);
  ExpectTooSoon(1);
  EXPECT_EQ(exchange_->waiting_count, 1u);
}

TEST_F(CoreLoopAggregator, NoResultComesWhileTheLastOneWaits) {
  transport_.set_post_limit(1);
  ResultFromHome(1, 1);
  EXPECT_EQ(exchange_->waiting_count, 1u);
  ResultFromHome(2, 2);
  ExpectTooSoon(2);
  EXPECT_EQ(exchange_->waiting_count, 1u);
}

TEST_F(CoreLoopAggregator, ARackThatHasNotReadAResultSendsNothingOfTheNextRound) {
  PartialFrom(0, 1, 1);
  PartialFrom(1, 1, 2);
  transport_.set_post_limit(1);
  ResultFromHome(1, 1);
  const std::uint32_t waits = exchange_->peers[0].waiting[0].end > 0 ? 0 : 1;
  PartialFrom(1 - waits, 2, 1);
  EXPECT_EQ(Next(Event::Kind::kFault).kind, Event::Kind::kNone);
  PartialFrom(waits, 2, 1);
  ExpectTooSoon(waits);
}

// Expect: a queue that was full for a while is not a fault.
TEST_F(CoreLoopAggregator, RoundsGoOnOnceWhatWaitedHasLeft) {
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    transport_.set_post_limit(0);
    PartialFrom(0, iteration, 1);
    PartialFrom(1, iteration, 2);
    transport_.set_post_limit(SIZE_MAX);
    loop_.RunOnce();
    transport_.set_post_limit(0);
    ResultFromHome(iteration, 1);
    transport_.set_post_limit(SIZE_MAX);
    loop_.RunOnce();
  }
  EXPECT_EQ(Count(CoreCounter::partials_sent), 3u);
  EXPECT_EQ(Count(CoreCounter::results_sent), 6u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopAggregator, AResultMayComeWhileTheNextRoundsSumWaits) {
  PartialFrom(0, 1, 1);
  PartialFrom(1, 1, 2);
  transport_.set_post_limit(0);
  PartialFrom(0, 2, 1);
  PartialFrom(1, 2, 2);
  ResultFromHome(1, 1);
  transport_.set_post_limit(SIZE_MAX);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
  EXPECT_EQ(exchange_->waiting_count, 0u);
}

TEST_F(CoreLoopAggregator, RacksThatMeanOtherHyperParametersAreBothNamed) {
  PartialFrom(1, 1, 1);
  hash_ = 5;
  PartialFrom(0, 1, 1);
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kRoundMismatch);
  EXPECT_EQ(event.source, RackIndex{0});
  EXPECT_EQ(event.other, RackIndex{1});
}

TEST_F(CoreLoopAggregator, SumsAreMeasuredFromTheFirstChildsToTheLast) {
  clock_.now = 100;
  PartialFrom(0, 1, 1);
  clock_.now = 130;
  PartialFrom(1, 1, 1);
  const ExchangeMetrics& metrics = exchange_->metrics;
  SpanMeter& sums = metrics.trees[1 + exchange_->chunks()[chunk_]->tree_index][ExchangeSpan::kSums];
  EXPECT_EQ(sums.exchanges(), 1u);
  EXPECT_EQ(sums.busy_ns(), 30u);
  EXPECT_EQ(metrics.links[1].sums_last.Get(), 1u);
  EXPECT_EQ(metrics.links[1].sums_awaited_ns.Get(), 30u);
  clock_.now = 180;
  ResultFromHome(1, 1);
  EXPECT_EQ(metrics.links[2].result_wait_ns.Get(), 50u);
}

// Expect: masters and optimizer state are neither reserved nor allocated on daemons without an
// optimizer.
TEST(AggregatorMemory, IsWhatSumsAndParametersTake) {
  ShardConfig config;
  config.world_size = 1;
  config.ranks_of_job = 3;
  std::vector<std::byte> parameters(2 * kElements);
  KeyShardSpec key;
  key.optimizer = Optimizer::kAdam;
  key.parameter_type = ElementType::kF16;
  key.chunks = {{kElements, 0}};
  key.parameters = {parameters.data(), parameters.data()};
  const auto at_rack = MakeKeyBatch(config, {&key, 1});
  ASSERT_NE(at_rack->chunks[0].masters, nullptr);
  ASSERT_NE(at_rack->chunks[0].state[1], nullptr);
  config.world_size = 0;
  const auto batch = MakeKeyBatch(config, {&key, 1});
  EXPECT_NE(batch->chunks[0].accumulator, nullptr);
  EXPECT_EQ(batch->chunks[0].masters, nullptr);
  EXPECT_EQ(batch->chunks[0].state[0], nullptr);
  const std::uint64_t per_array = kElements * sizeof(float);  // masters, and two arrays of Adam
  EXPECT_LE(batch->memory_bytes + 3 * per_array, at_rack->memory_bytes);
}

TEST_F(CoreLoopAggregator, ARoundAllocatesNothing) {
  transport_.set_keep_posted(false);
  const std::vector<float> values = Filled(2);
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    for (const std::uint32_t rack : {0u, 1u}) {
      transport_.Deliver(peers_[rack], FromPeer(chunk_, iteration, 0), values);
    }
    transport_.Deliver(peers_[2], FromPeer(chunk_, iteration, 1), values);
    const std::size_t before = testing::AllocationCount();
    loop_.RunOnce();
    loop_.RunOnce();
    EXPECT_EQ(testing::AllocationCount(), before) << iteration;
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
