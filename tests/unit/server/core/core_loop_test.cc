// The core loop's handling of valid messages from workers: rounds, folding, replies, exactly once.
#include "tests/support/allocation_counter.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

TEST_F(CoreLoopTest, AnswersEveryRankWhenTheLastGradientArrives) {
  Start(3, 2);
  // Receive two of three gradients. Expect: no reply.
  Push(2, 0, 1, 0, 4.0f);
  Push(0, 0, 1, 1, 1.0f);
  EXPECT_TRUE(transport_.TakePosted().empty());
  // Receive the third. Expect: one reply to each rank, with the sum, naming chunk and iteration.
  Push(1, 0, 1, 0, 2.0f);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  for (const auto& reply : replies) {
    EXPECT_EQ(reply.header.iteration, Iteration{1});
    EXPECT_EQ(reply.header.slot, SlotIndex{0});
    EXPECT_EQ(reply.payload, Filled(7.0f));
  }
}

TEST_F(CoreLoopTest, ControlThatTakesNoEventsDoesNotStopTraining) {
  Start(2, 2);
  Event event;
  while (loop_.queues().events.TryPop(event)) continue;
  constexpr std::size_t kReports = 6000;  // more than the queue has room for
  std::vector<StallReport> reports(kReports);
  for (StallReport& report : reports) {
    Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  }
  EXPECT_GT(Count(CoreCounter::events_delayed), 0u);
  // Expect: rounds go on, lanes close and open, and commands are executed.
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    Push(0, 0, iteration, 0, 1.0f);
    Push(1, 0, iteration, 0, 2.0f);
    ASSERT_EQ(Replies().size(), 2u) << iteration;
  }
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
  // Expect: every event in its order once control takes them again.
  std::size_t taken = 0;
  bool ended = false;
  for (int run = 0; run < 10; ++run) {
    while (loop_.queues().events.TryPop(event)) {
      if (event.kind == Event::Kind::kStallsReported) {
        ASSERT_LT(taken, kReports);
        ASSERT_EQ(event.report, &reports[taken++]);
      }
      ended |= event.kind == Event::Kind::kJobEnded;
    }
    loop_.RunOnce();
  }
  EXPECT_EQ(taken, kReports);
  EXPECT_TRUE(ended);
}

TEST_F(CoreLoopTest, SumsInRankOrderWhateverTheArrival) {
  Start(3, 2);
  // (1e8 + 3) - 1e8 differs in floats from (1e8 - 1e8) + 3.
  Push(2, 0, 1, 0, -1.0e8f);
  Push(1, 0, 1, 0, 3.0f);
  Push(0, 0, 1, 0, 1.0e8f);
  volatile float sum = 1.0e8f;
  sum = sum + 3.0f;
  sum = sum - 1.0e8f;
  EXPECT_EQ(Replies().at(0).payload, Filled(sum));
}

TEST_F(CoreLoopTest, MeanDividesTheFinishedSumOnce) {
  Start(3, 2, Optimizer::kNone, Reduction::kMean);
  Push(0, 0, 1, 0, 1.0f);
  Push(1, 0, 1, 0, 1.0f);
  Push(2, 0, 1, 0, 2.0f);
  EXPECT_EQ(Replies().at(0).payload, Filled(4.0f / 3.0f));
}

TEST_F(CoreLoopTest, MomentumKeepsItsStateOnTheServer) {
  Start(1, 2, Optimizer::kMomentum);
  Push(0, 0, 1, 0, 1.0f);  // b = 1, p = -0.5
  EXPECT_EQ(Replies().at(0).payload, Filled(-0.5f));
  Push(0, 0, 2, 0, 1.0f);  // b = 0.9 + 1 = 1.9, p = -0.5 - 0.95
  EXPECT_EQ(Replies().at(0).payload, Filled(-0.5f - 0.5f * (0.9f * 1.0f + 1.0f)));
}

TEST_F(CoreLoopTest, RecordsChangeHyperParametersFromTheGradientThatNamesThem) {
  Start(1, 2, Optimizer::kSgd);
  Push(0, 0, 1, 0, 1.0f);
  EXPECT_EQ(Replies().at(0).payload, Filled(-0.5f));
  wire::MessageHeader record = Gradient(0, 0, 0);
  record.hyper_version = HyperVersion{2};
  transport_.DeliverHyperParameters(lanes_[0], record, {.learning_rate = 2.0});
  wire::MessageHeader gradient = Gradient(0, 2, 0);
  gradient.hyper_version = HyperVersion{2};
  transport_.Deliver(lanes_[0], gradient, Filled(1.0f));
  loop_.RunOnce();
  EXPECT_EQ(Replies().at(0).payload, Filled(-2.5f));
}

TEST_F(CoreLoopTest, AssignGivesEveryRankTheRootsPayload) {
  Start(3, 1, Optimizer::kMomentum);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    wire::MessageHeader header = Gradient(0, 1, 0);
    header.operation = wire::RoundOperation::kAssign;
    header.root = Rank{1};
    transport_.Deliver(lanes_[rank], header, rank == 1 ? Filled(6.0f) : std::vector<float>{});
    loop_.RunOnce();
  }
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[2].payload, Filled(6.0f));
}

TEST_F(CoreLoopTest, FullLanesAreRelievedByFoldingAndTheBitsStay) {
  Start(2, 1);
  // Rank 0 and rank 1 push in opposite orders with one slot each: without folding, deadlock.
  Push(0, 0, 1, 0, 1.0e8f);
  auto credits = Posted(wire::MessageKind::kCredit);
  ASSERT_EQ(credits.size(), 1u);
  EXPECT_EQ(credits[0].connection, lanes_[0]);
  EXPECT_EQ(credits[0].header.chunk, ChunkIndex{0});
  Push(1, 1, 1, 0, 3.0f);  // no ready prefix: rank 0 has not pushed chunk 1
  EXPECT_TRUE(Posted(wire::MessageKind::kCredit).empty());
  Push(0, 1, 1, 0, 4.0f);  // completes chunk 1
  EXPECT_EQ(Replies().size(), 2u);
  Push(1, 0, 1, 0, -1.0e8f);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(0.0f));
  EXPECT_EQ(Count(CoreCounter::gradients_folded), 1u);
}

TEST_F(CoreLoopTest, ALaneThatFillsUpElsewhereIsRelievedByAnotherLanesArrival) {
  Start(3, 2, Optimizer::kNone, Reduction::kSum, 4);
  // Rank 1's slots are full with chunks 0 and 1, whose rank 0 is missing. Rank 0 has free slots.
  Push(1, 0, 1, 0, 2.0f);
  Push(1, 1, 1, 1, 2.0f);
  EXPECT_TRUE(transport_.TakePosted().empty());
  Push(0, 1, 1, 0, 1.0f);
  const auto credits = Posted(wire::MessageKind::kCredit);
  ASSERT_EQ(credits.size(), 2u) << "both slots of the prefix, in whichever lanes they lie";
  EXPECT_EQ(credits[0].connection, lanes_[0]);
  EXPECT_EQ(credits[1].connection, lanes_[1]);
}

TEST_F(CoreLoopTest, RepliesHaveAWindowAndTheRestWaitInABitmap) {
  config_.replies_per_lane_max = 1;
  Start(1, 4);
  transport_.set_report_sent(false);
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    Push(0, chunk, 1, chunk, static_cast<float>(chunk));
  }
  EXPECT_EQ(Replies().size(), 1u);
  EXPECT_EQ(Count(CoreCounter::replies_deferred), 3u);
  transport_.set_report_sent(true);
  for (int i = 0; i < 8; ++i) loop_.RunOnce();
  const auto rest = Replies();
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[2].payload, Filled(3.0f));
}

TEST_F(CoreLoopTest, WhatFindsTheSendQueueFullIsSentLater) {
  Start(2, 1);
  transport_.set_post_limit(0);
  Push(0, 0, 1, 0, 1.0f);  // folded: a credit waits
  Push(1, 0, 1, 0, 2.0f);  // complete: two replies wait
  EXPECT_TRUE(transport_.TakePosted().empty());
  transport_.set_post_limit(SIZE_MAX);
  loop_.RunOnce();
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 3u);
  EXPECT_EQ(posted[0].header.kind, wire::MessageKind::kCredit);
  EXPECT_EQ(posted[1].payload, Filled(3.0f));
}

TEST_F(CoreLoopTest, ExactlyOnceOverAReplacedLane) {
  config_.on_loss = LossPolicy::kWait;
  Start(3, 1);
  // Receive rank 0 (folded at once, one slot), rank 2 (staged). Both lanes break.
  Push(0, 0, 1, 0, 1.0f);
  Push(2, 0, 1, 0, 4.0f);
  transport_.Break(lanes_[0], TransportError::kReset);
  transport_.Break(lanes_[2], TransportError::kReset);
  loop_.RunOnce();
  EXPECT_EQ(Count(CoreCounter::staged_discarded), 1u);
  Attach(0);
  Attach(2);
  transport_.TakePosted();
  // Receive both again. Expect: the folded one is a duplicate and credited, the other is new.
  Push(0, 0, 1, 0, 1.0f);
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  EXPECT_EQ(Count(CoreCounter::duplicates_staged), 1u);
  Push(2, 0, 1, 0, 4.0f);
  Push(1, 0, 1, 0, 2.0f);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].payload, Filled(7.0f));
}

TEST_F(CoreLoopTest, AnAppliedGradientIsAnsweredAgainNotAppliedAgain) {
  config_.on_loss = LossPolicy::kWait;
  Start(2, 1, Optimizer::kSgd);
  Push(0, 0, 1, 0, 1.0f);
  transport_.Break(lanes_[0], TransportError::kReset);  // before the round was complete
  loop_.RunOnce();
  Push(1, 0, 1, 0, 1.0f);
  EXPECT_EQ(Replies().size(), 1u) << "rank 0 has no lane";
  Attach(0);
  EXPECT_TRUE(Replies().empty()) << "not asked: it has not pushed on this lane";
  Push(0, 0, 1, 0, 1.0f);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].connection, lanes_[0]);
  EXPECT_EQ(replies[0].payload, Filled(-1.0f));
  EXPECT_EQ(Count(CoreCounter::duplicates_applied), 1u);
}

TEST_F(CoreLoopTest, ALaneLostUnderFailStopsTheJobAndNamesTheRank) {
  Start(2, 2);
  Push(0, 0, 1, 0, 1.0f);
  transport_.Break(lanes_[1], TransportError::kPeerClosed);
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kLaneLost);
  EXPECT_EQ(fault.source, Rank{1});
  EXPECT_EQ(fault.error, TransportError::kPeerClosed);
}

TEST_F(CoreLoopTest, StallsNameTheMissingRanks) {
  Start(3, 4);
  clock_.now = 50;
  Push(1, 0, 1, 0, 1.0f);
  clock_.now = 60;
  Push(1, 1, 1, 1, 1.0f);
  StallReport report;
  report.entries.resize(1);
  report.entries[0].missing.resize(1);
  Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  EXPECT_EQ(Next(Event::Kind::kStallsReported).report, &report);
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].chunks_waiting, 2u);
  EXPECT_EQ(report.entries[0].since, 50);
  EXPECT_EQ(report.entries[0].iteration, Iteration{1});
  EXPECT_EQ(report.entries[0].missing[0], 0b101u);
}

TEST_F(CoreLoopTest, AnEndedJobIsGivenBackOnlyAfterItsLanesClosed) {
  Start(2, 2);
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
  std::size_t closed = 0;
  Event event;
  for (int i = 0; i < 4; ++i) loop_.RunOnce();
  while (loop_.queues().events.TryPop(event)) {
    if (event.kind == Event::Kind::kLaneClosed) ++closed;
    if (event.kind == Event::Kind::kJobEnded) {
      EXPECT_EQ(closed, 2u);
      return;
    }
  }
  FAIL() << "kJobEnded did not come";
}

TEST_F(CoreLoopTest, AllocatesNothingAfterAdmission) {
  Start(2, 1, Optimizer::kMomentum);
  transport_.set_keep_posted(false);
  std::size_t inside = 0;
  for (std::uint64_t iteration = 1; iteration <= 50; ++iteration) {
    for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
      for (const std::uint32_t rank : {0u, 1u}) {
        transport_.Deliver(lanes_[rank], Gradient(chunk, iteration, 0), Filled(1.0f));
        const std::size_t before = testing::AllocationCount();
        loop_.RunOnce();
        inside += testing::AllocationCount() - before;
      }
    }
  }
  EXPECT_EQ(Count(CoreCounter::rounds), 200u);
  EXPECT_EQ(inside, 0u);
}

}  // namespace
}  // namespace phub::server
