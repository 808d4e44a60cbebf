// Rounds that an aggregator sums: full transports, lost lanes, wrong messages, allocations.
#include <array>
#include <cmath>
#include <functional>

#include "tests/unit/server/core/core_loop_sums_fixture.h"

namespace phub::server {
namespace {

TEST_F(SumsTest, MessagesThatFindNoRoomArriveLaterInOrder) {
  StartSums();
  transport_.TakePosted();
  transport_.set_post_limit(0);
  Open();
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    Announce(0, chunk, 1);
    Announce(1, chunk, 1);
  }
  PushTcp(0, 2, 1, 0);
  Announce(1, 2, 1);
  EXPECT_TRUE(transport_.TakePosted().empty());
  transport_.set_post_limit(SIZE_MAX);
  loop_.RunOnce();
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 7u);
  std::vector<std::uint32_t> of_rank_1;
  std::vector<std::uint64_t> positions;
  for (const auto& one : posted) {
    if (one.connection != lanes_[1]) continue;
    of_rank_1.push_back(static_cast<std::uint32_t>(one.header.kind));
    if (one.header.kind == MessageKind::kAssign) positions.push_back(one.header.value_bits);
  }
  EXPECT_EQ(of_rank_1, (std::vector{kStream, kAssigned, kAssigned, kTcp}));
  EXPECT_EQ(positions, (std::vector<std::uint64_t>{0, 1}));
}

TEST_F(SumsTest, ANewLaneGetsTheStreamAndItsOpenPositions) {
  StartSums();
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 3, 1);
  Announce(1, 2, 1);
  transport_.Break(lanes_[1], TransportError::kReset);
  loop_.RunOnce();
  transport_.TakePosted();
  Attach(1);
  loop_.RunOnce();
  EXPECT_EQ(Kinds(), (std::vector{kStream, kAssigned}));
  // Expect: it announces again all that it waits for.
  Announce(1, 3, 1);
  Announce(1, 2, 1);
  SumAll(3, 1, 0);
  ExpectVersion(port_->TakeSent(), 3, 1, Parameters(3));
  Announce(0, 2, 1);
  SumAll(2, 1, 1);
  ExpectVersion(port_->TakeSent(), 2, 1, Parameters(2));
  // Expect: an announcement of what is summed gets the version, as datagrams to that rank.
  Announce(1, 2, 1);
  ExpectVersion(port_->TakeSent(), 2, 1, Parameters(2), 1);
  EXPECT_TRUE(Replies().empty());
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(SumsTest, AsksForSumsThatHaveNotArrivedInTime) {
  StartSums();
  const TimeNs before = loop_.NextTimer();
  port_->next_question = 1;
  loop_.RunOnce();
  EXPECT_EQ(loop_.NextTimer(), before) << "no stream is open";
  EXPECT_EQ(port_->asked_at, -1);
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 0, 1);
  EXPECT_EQ(port_->last_assigned, aggregation::Position{0});
  EXPECT_EQ(loop_.NextTimer(), 1);
  const std::uint64_t count = Count(CoreCounter::sum_nacks);
  loop_.RunOnce();
  EXPECT_EQ(Count(CoreCounter::sum_nacks), count + 1);
  Close();
  port_->asked_at = -1;
  loop_.RunOnce();
  EXPECT_EQ(port_->asked_at, -1);
  EXPECT_EQ(loop_.NextTimer(), before);
}

TEST_F(SumsTest, ARankGetsTheBlocksThatItHasMissed) {
  StartSums();
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 0, 1);
  AskForBlocks(1, 0, 1, std::array{std::byte{7}});  // too early
  EXPECT_TRUE(port_->TakeSent().empty());
  SumAll(0, 1, 0);
  port_->TakeSent();
  AskForBlocks(1, 0, 1, std::array{std::byte{2}});
  const auto sent = port_->TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].about.block, 1u);
  EXPECT_EQ(sent[0].worker, 1u);
  EXPECT_EQ(Count(CoreCounter::parameter_blocks_again), 1u);
  EXPECT_EQ(Count(CoreCounter::parameter_block_bytes), (kElements + kBlock) * sizeof(float));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(SumsTest, ARankThatGetsNoDatagramsPushesAndIsAnsweredOverTcp) {
  StartSums();
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 0, 1);
  transport_.TakePosted();
  AskForBlocks(1, 0, 1, {});  // too early
  EXPECT_TRUE(Kinds().empty());
  SumAll(0, 1, 0);
  AskForBlocks(1, 0, 1, {});
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 1u);
  EXPECT_EQ(posted[0].connection, lanes_[1]);
  EXPECT_EQ(posted[0].header.kind, MessageKind::kUseTcp);
  EXPECT_EQ(posted[0].header.iteration.value, 1u);
  const Numbers before = Parameters(0);
  PushTcp(1, 0, 1, 0);
  EXPECT_EQ(Replies().size(), 1u);
  EXPECT_EQ(Parameters(0), before);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(SumsTest, ParametersOfAStreamThatHasEndedAreAskedForByPushes) {
  StartSums();
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 0, 1);
  SumAll(0, 1, 0);
  port_->TakeSent();
  Close();
  const Numbers before = Parameters(0);
  AskForBlocks(0, 0, 1, std::array{std::byte{7}});  // it does not know yet
  for (std::uint32_t rank = 0; rank < 2; ++rank) PushTcp(rank, 0, 1, 0);
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(Parameters(0), before);
  EXPECT_TRUE(port_->TakeSent().empty());
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(SumsTest, ALostLaneTakesWithItWhatItPushedOverTcp) {
  StartSums();
  Open();
  PushTcp(0, 0, 1, 0);
  transport_.Break(lanes_[0], TransportError::kReset);
  loop_.RunOnce();
  Attach(0);
  Announce(0, 0, 1);  // it has learned that a stream is open
  Announce(1, 0, 1);
  EXPECT_EQ(Posted(MessageKind::kUseTcp).size(), 2u);
  PushTcp(0, 0, 1, 0);
  PushTcp(1, 0, 1, 0);
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(SumsTest, ARankWithNotANumberIsNamed) {
  StartSums();
  Open();
  bad_rank_ = 1;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    DeliverAnnouncement(rank, Announcement(0, 1), Of(rank, 0, 1));
  SumAll(0, 1, 0);
  const Event event = Next(Event::Kind::kNonFinite);
  ASSERT_EQ(event.kind, Event::Kind::kNonFinite);
  EXPECT_EQ(event.source.rank().value, 1u);
  EXPECT_EQ(shard_->metrics.nonfinite_gradients.Get(), 1u);
  EXPECT_TRUE(std::isnan(Parameters(0)[25]));
  EXPECT_FALSE(std::isnan(Parameters(0)[0]));
}

TEST_F(SumsTest, AStallNamesTheRankThatHasNotAnnounced) {
  StartSums();
  Open();
  Announce(1, 0, 1);
  StallReport report;
  report.entries.resize(1);
  report.entries[0].missing.resize(1);
  Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].missing[0], 1u);  // rank 0
}

struct Refused {
  const char* name;
  FaultCode fault;
  std::function<void(SumsTest&)> send;
};

TEST_F(SumsTest, AnnouncementsThatNoHonestRankSendsAreFaults) {
  const auto announce = [](auto change) {
    return [change](SumsTest& test) {
      wire::MessageHeader header = test.Announcement(0, 1);
      change(header);
      test.DeliverAnnouncement(0, header, test.Gradient(0, 0, 1));
    };
  };
  using Header = wire::MessageHeader;
  const Refused cases[] = {
      {"chunk", FaultCode::kChunkRange, announce([](Header& h) { h.chunk = ChunkIndex{99}; })},
      {"operation", FaultCode::kUnexpectedKind,
       announce([](Header& h) { h.operation = wire::RoundOperation::kAssign; })},
      {"type", FaultCode::kType, announce([](Header& h) { h.type = numeric::ElementType::kF16; })},
      {"gap", FaultCode::kIterationGap, announce([](Header& h) { h.iteration = Iteration{2}; })},
      {"stale", FaultCode::kStaleIteration,
       announce([](Header& h) { h.iteration = Iteration{0}; })},
      {"record", FaultCode::kUnknownHyperParameters,
       announce([](Header& h) { h.hyper_version = HyperVersion{9}; })},
      {"blocks", FaultCode::kPayloadSize,
       [](SumsTest& test) {
         test.transport_.DeliverInline(test.lanes_[0], test.Announcement(0, 1),
                                       std::array<std::byte, 2>{});
         test.loop_.RunOnce();
       }},
      {"missing: chunk", FaultCode::kChunkRange,
       [](SumsTest& test) { test.AskForBlocks(0, 99, 1, {}); }},
      {"missing: bits", FaultCode::kPayloadSize,
       [](SumsTest& test) { test.AskForBlocks(0, 0, 1, std::array<std::byte, 2>{}); }},
      {"missing: gap", FaultCode::kIterationGap,
       [](SumsTest& test) { test.AskForBlocks(0, 0, 2, {}); }},
      {"missing: stale", FaultCode::kStaleIteration,
       [](SumsTest& test) { test.AskForBlocks(0, 0, 0, {}); }},
      {"push after the announcement", FaultCode::kUnexpectedKind,
       [](SumsTest& test) {
         test.Announce(0, 0, 1);
         test.PushTcp(0, 0, 1, 0);
       }},
      {"another round", FaultCode::kRoundMismatch, [](SumsTest& test) {
         test.Announce(0, 0, 1);
         wire::MessageHeader header = test.Pushed(0, 1, 0);
         header.operation = wire::RoundOperation::kAssign;
         header.root = Rank{0};
         test.transport_.Deliver(test.lanes_[1], header);
         test.loop_.RunOnce();
       }}};
  for (const Refused& each : cases) {
    Sums test;
    test.StartSums();
    test.Open();
    each.send(test);
    EXPECT_EQ(test.FaultOf(), each.fault) << each.name;
  }
}

TEST_F(SumsTest, AnAnnouncementInAJobWithoutStreamsIsAFault) {
  has_sums_ = false;
  StartSums();
  Announce(0, 0, 1);
  EXPECT_EQ(FaultOf(), FaultCode::kPayloadSize);
  Sums questions;
  questions.has_sums_ = false;
  questions.StartSums();
  questions.AskForBlocks(0, 0, 1, {});
  EXPECT_EQ(questions.FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(SumsTest, ABlockOfAnotherSizeEndsTheJob) {
  StartSums();
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 0, 1);
  phub_packet packet{};
  packet.lease = kLease;
  packet.slot = 2;
  packet.exponent = static_cast<__u8>(shard_->sums->stream.Exponents(ChunkIndex{0})[2]);
  packet.count = kBlock;  // the last block has 16
  port_->Put(packet, std::array<std::int32_t, kBlock>{});
  EXPECT_EQ(FaultOf(), FaultCode::kPayloadSize);
}

TEST_F(SumsTest, NothingAllocatesInRounds) {
  StartSums();
  transport_.set_keep_posted(false);
  port_->keep_sent = false;
  const auto iterate = [&](std::uint64_t iteration, std::uint64_t position) {
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      for (std::uint32_t chunk = 0; chunk < 4; ++chunk)
        Announce(rank, chunk, iteration, lease_.number);
    for (std::uint32_t chunk = 0; chunk < 4; chunk += 2) {
      for (std::uint32_t i = 0; i < 2; ++i)
        for (std::uint32_t block = 0; block < kBlocks; ++block)
          Sum(chunk + i, iteration, position + chunk + i, block);
      const std::size_t before = testing::AllocationCount();
      loop_.RunOnce();
      EXPECT_EQ(testing::AllocationCount() - before, 0u);
    }
  };
  for (std::uint32_t stream = 0; stream < 3; ++stream) {
    Open(kLease + stream);
    iterate(stream + 1, 0);
    const std::size_t before = testing::AllocationCount();
    Close();
    EXPECT_EQ(testing::AllocationCount() - before, 0u);
    EXPECT_EQ(allocated_, 0u);
  }
  EXPECT_EQ(Count(CoreCounter::rounds_streamed), 12u);
}

}  // namespace
}  // namespace phub::server
