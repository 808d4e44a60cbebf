// Rounds that an aggregator sums: bits, positions, and changes to tcp and back.
#include "tests/unit/server/core/core_loop_sums_fixture.h"

namespace phub::server {
namespace {

TEST_F(SumsTest, SumsHaveTheBitsOfThoseOverTcp) {
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    Sums over_tcp;
    over_tcp.StartSums(ranks);
    Sums streamed;
    streamed.StartSums(ranks);
    streamed.Open();
    for (std::uint64_t iteration = 1; iteration <= 5; ++iteration) {
      for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          over_tcp.PushTcp(rank, chunk, iteration, 0);
          streamed.Announce(rank, chunk, iteration);
        }
        streamed.SumAll(chunk, iteration, (iteration - 1) * 2 + chunk);
        EXPECT_TRUE(streamed.Replies().empty());
        streamed.ExpectVersion(streamed.port_->TakeSent(), chunk, iteration,
                               streamed.Parameters(chunk));
        EXPECT_EQ(streamed.Parameters(chunk), over_tcp.Parameters(chunk));
        EXPECT_NE(streamed.Parameters(chunk), Numbers(kElements));
      }
    }
    EXPECT_EQ(streamed.Count(CoreCounter::rounds_streamed), 10u);
    EXPECT_EQ(streamed.Count(CoreCounter::sum_block_bytes), 10 * kElements * sizeof(float));
    EXPECT_EQ(streamed.Count(CoreCounter::parameter_block_bytes), 10 * kElements * sizeof(float));
    EXPECT_EQ(streamed.Count(CoreCounter::parameter_blocks), 10 * kBlocks);
    EXPECT_EQ(streamed.Count(CoreCounter::reply_bytes), 0u);
    EXPECT_EQ(streamed.Count(CoreCounter::gradient_bytes), 0u);
    EXPECT_EQ(streamed.Count(CoreCounter::rounds), 10u);
    EXPECT_EQ(streamed.FaultOf(), FaultCode::kNone);
  }
}

TEST_F(SumsTest, EachRankGetsTheTermsAndThePositionWithTheGreatestExponents) {
  StartSums();
  transport_.TakePosted();
  Open();
  auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 2u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(posted[rank].header.kind, MessageKind::kStreamIs);
    aggregation::StreamTerms terms;
    ASSERT_TRUE(aggregation::DecodeStreamTerms(posted[rank].bytes, terms));
    EXPECT_EQ(terms.worker, rank);
    EXPECT_EQ(terms.lease.value, kLease);
  }
  Announce(0, 2, 1);
  EXPECT_TRUE(transport_.TakePosted().empty());
  Announce(1, 2, 1);
  posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 2u);
  for (const auto& one : posted) {
    EXPECT_EQ(one.header.kind, MessageKind::kAssign);
    EXPECT_EQ(one.header.chunk.value, 2u);
    EXPECT_EQ(one.header.iteration.value, 1u);
    EXPECT_EQ(one.header.value_bits, 0u);
    ASSERT_EQ(one.bytes.size(), kBlocks);
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      const std::uint8_t greatest =
          std::max(aggregation::ExponentOf(BlockOf(Gradient(0, 2, 1), block)),
                   aggregation::ExponentOf(BlockOf(Gradient(1, 2, 1), block)));
      EXPECT_EQ(one.bytes[block], std::byte{greatest});
    }
  }
}

TEST_F(SumsTest, APositionIsAssignedOnlyWhenItsPlaceIsTaken) {
  StartSums();
  Open();
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    Announce(0, chunk, 1);
    Announce(1, chunk, 1);
  }
  EXPECT_EQ(Posted(MessageKind::kAssign).size(), 4u);  // two positions, for two ranks
  SumAll(1, 1, 1);
  EXPECT_TRUE(Posted(MessageKind::kAssign).empty());  // position 0 is still open
  SumAll(0, 1, 0);
  const auto assigned = Posted(MessageKind::kAssign);
  ASSERT_EQ(assigned.size(), 4u);
  EXPECT_EQ(assigned[0].header.chunk.value, 2u);
  EXPECT_EQ(assigned[0].header.value_bits, 2u);
  EXPECT_EQ(assigned[2].header.chunk.value + assigned[1].header.chunk.value, 5u);
}

TEST_F(SumsTest, APushOverTcpMakesTheOtherRanksPush) {
  StartSums(3);
  Open();
  Announce(0, 0, 1);
  transport_.TakePosted();
  PushTcp(1, 0, 1, 0);
  EXPECT_EQ(Kinds(), std::vector{kTcp});  // rank 0
  Announce(2, 0, 1);
  EXPECT_EQ(Kinds(), std::vector{kTcp});
  PushTcp(0, 0, 1, 0);
  PushTcp(2, 0, 1, 0);
  EXPECT_EQ(Replies().size(), 3u);
  // Expect: the next iteration can be streamed again.
  for (std::uint32_t rank = 0; rank < 3; ++rank) Announce(rank, 0, 2);
  EXPECT_EQ(Posted(MessageKind::kAssign).size(), 3u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(SumsTest, AStreamThatClosesLeavesNothingOfItsPartialSums) {
  Sums over_tcp;
  over_tcp.StartSums();
  StartSums();
  Open();
  for (std::uint32_t rank = 0; rank < 2; ++rank) Announce(rank, 0, 1);
  Announce(0, 1, 1);
  Sum(0, 1, 0, 1);
  loop_.RunOnce();
  transport_.TakePosted();
  Close();
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(posted.size(), 2u);
  EXPECT_EQ(posted[0].header.kind, MessageKind::kStreamIs);
  EXPECT_EQ(posted[0].header.payload_bytes, 0u);
  Sum(0, 1, 0, 0);  // it is late
  loop_.RunOnce();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
      PushTcp(rank, chunk, 1, chunk);
      over_tcp.PushTcp(rank, chunk, 1, chunk);
    }
  }
  EXPECT_EQ(Replies().size(), 4u);
  EXPECT_EQ(Parameters(0), over_tcp.Parameters(0));
  EXPECT_EQ(Parameters(1), over_tcp.Parameters(1));
  // Expect: a new lease continues, also if a rank still announces for the old one.
  Open(kLease + 1);
  transport_.TakePosted();
  Announce(0, 0, 2, kLease);
  Announce(0, 0, 2, kLease + 1);
  Announce(1, 0, 2, kLease + 1);
  EXPECT_EQ(Posted(MessageKind::kAssign).size(), 2u);
  EXPECT_TRUE(port_->TakeSent().empty());
  SumAll(0, 2, 0);
  ExpectVersion(port_->TakeSent(), 0, 2, Parameters(0));
  EXPECT_TRUE(Replies().empty());
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
