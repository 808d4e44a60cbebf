// The core loop with memory shared between worker and daemon: gradients stay in place, and replies
// are written to the worker's memory.
#include <cstring>
#include <limits>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

// A worker's memory: gradients of chunk 0 first, then its own copy of the parameters.
class SharedLaneTest : public CoreLoopTest {
 protected:
  static constexpr std::size_t kBytes = kElements * sizeof(float);

  void Share(std::uint32_t rank) {
    memory_[rank].resize(2 * kBytes);
    transport_.Share(lanes_[rank], memory_[rank]);
  }
  void PushInPlace(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration, float value,
                   SharedAddress reply = {}) {
    const std::vector<float> filled = Filled(value);
    std::memcpy(memory_[rank].data(), filled.data(), kBytes);
    wire::MessageHeader header = Gradient(chunk, iteration, 0);
    header.reply_address = reply;
    transport_.DeliverInPlace(lanes_[rank], header, {memory_[rank].data(), kBytes});
    loop_.RunOnce();
  }
  std::vector<float> OwnCopy(std::uint32_t rank) {
    std::vector<float> copy(kElements);
    std::memcpy(copy.data(), memory_[rank].data() + kBytes, kBytes);
    return copy;
  }
  static constexpr SharedAddress kOwn{kBytes + 1};

  std::map<std::uint32_t, std::vector<std::byte>> memory_;
};

TEST_F(SharedLaneTest, GradientsAreSummedWhereTheyLieAndHoldNoSlot) {
  Start(2, 1);
  Share(0);
  // Rank 0 shares memory, rank 1 has one slot. More chunks of rank 0 wait than it has slots.
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) PushInPlace(0, chunk, 1, 5.0f);
  EXPECT_TRUE(transport_.TakePosted().empty()) << "no credits: no slot was taken";
  EXPECT_EQ(shard_->lanes[0].slots_used, 0u);
  EXPECT_EQ(shard_->lanes[0].staged_in_place, 4u);
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    Push(1, chunk, 1, 0, 2.0f);
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 2u);
    EXPECT_EQ(replies[0].payload, Filled(7.0f));
  }
  EXPECT_EQ(Count(CoreCounter::gradients_in_place), 4u);
  EXPECT_EQ(shard_->lanes[0].staged_in_place, 0u);
}

TEST_F(SharedLaneTest, APrefixInSharedMemoryIsFoldedAlongWithoutCredit) {
  Start(3, 1);
  Share(0);
  PushInPlace(0, 0, 1, 1.0f);
  Push(1, 0, 1, 0, 2.0f);  // fills rank 1's lane, so ranks 0 and 1 are folded
  const auto credits = Posted(wire::MessageKind::kCredit);
  ASSERT_EQ(credits.size(), 1u);
  EXPECT_EQ(credits[0].connection, lanes_[1]);
  EXPECT_EQ(shard_->lanes[0].staged_in_place, 0u);
  PushInPlace(0, 1, 1, 9.0f);  // overwrites the same memory, which the fold has already read
  Push(2, 0, 1, 0, 4.0f);
  EXPECT_EQ(Replies().at(0).payload, Filled(7.0f));
}

TEST_F(SharedLaneTest, RepliesAreWrittenWhereTheWorkerWantsThem) {
  Start(2, 2, Optimizer::kSgd);
  Share(0);
  PushInPlace(0, 0, 1, 2.0f, kOwn);
  Push(1, 0, 1, 0, 4.0f);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(OwnCopy(0), Filled(-3.0f));
  for (const auto& reply : replies) {
    const bool own = reply.connection == lanes_[0];
    EXPECT_EQ(reply.from, own ? memory_[0].data() + kBytes : parameters_[0].data());
    EXPECT_EQ(reply.payload, Filled(-3.0f));
  }
  EXPECT_EQ(Count(CoreCounter::replies_in_pass), 1u);
}

TEST_F(SharedLaneTest, AReplyMayBeWrittenWhereItsGradientIs) {
  config_.screening = Screening::kReport;
  Start(3, 2, Optimizer::kSgd);
  constexpr SharedAddress kGradient{1};
  for (const std::uint32_t rank : {0u, 2u}) Share(rank);
  PushInPlace(0, 0, 1, 2.0f, kGradient);
  Push(1, 0, 1, 0, 4.0f);
  PushInPlace(2, 0, 1, 6.0f, kGradient);
  EXPECT_EQ(Replies().size(), 3u);
  const std::vector<float> result = Filled(-6.0f);
  for (const std::uint32_t rank : {0u, 2u}) {
    EXPECT_EQ(std::memcmp(memory_[rank].data(), result.data(), kBytes), 0) << rank;
  }
  // The rank that sends NaN is named, although all gradients that are in place are overwritten.
  PushInPlace(0, 1, 1, 2.0f, kGradient);
  Push(1, 1, 1, 1, 4.0f);
  PushInPlace(2, 1, 1, std::numeric_limits<float>::quiet_NaN(), kGradient);
  EXPECT_EQ(Replies().size(), 3u);
  EXPECT_EQ(Next(Event::Kind::kNonFinite).source, Rank{2});
  EXPECT_EQ(shard_->metrics.nonfinite_gradients.Get(), 1u);
  EXPECT_EQ(shard_->lanes[1].slots_used, 0u);
}

TEST_F(SharedLaneTest, AReplyMayBeWrittenWhereItsGradientIsAlsoInFixedPoint) {
  config_.sum_block = 16;
  config_.screening = Screening::kReport;
  Start(2, 2, Optimizer::kNone, Reduction::kMean);
  constexpr SharedAddress kGradient{1};
  Share(0);
  PushInPlace(0, 0, 1, 2.0f, kGradient);
  Push(1, 0, 1, 0, 4.0f);
  EXPECT_EQ(Replies().size(), 2u);
  const std::vector<float> mean = Filled(3.0f);
  EXPECT_EQ(std::memcmp(memory_[0].data(), mean.data(), kBytes), 0);
  EXPECT_EQ(Count(CoreCounter::replies_in_pass), 1u);
  PushInPlace(0, 1, 1, 2.0f, kGradient);
  Push(1, 1, 1, 1, std::numeric_limits<float>::infinity());
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(Next(Event::Kind::kNonFinite).source, Rank{1});
  EXPECT_EQ(shard_->metrics.nonfinite_gradients.Get(), 1u);
}

TEST_F(SharedLaneTest, AnAppliedGradientIsAnsweredIntoTheMemoryOfTheNewPush) {
  config_.on_loss = LossPolicy::kWait;
  Start(2, 2);
  Share(0);
  PushInPlace(0, 0, 1, 2.0f, kOwn);
  transport_.Break(lanes_[0], TransportError::kPeerClosed);
  loop_.RunOnce();
  EXPECT_EQ(shard_->lanes[0].staged_in_place, 0u) << "it was discarded with its lane";
  Attach(0);
  Share(0);
  Push(1, 0, 1, 0, 4.0f);
  EXPECT_TRUE(Replies().empty());
  PushInPlace(0, 0, 1, 2.0f);  // complete now; and again, as after another lost lane
  EXPECT_EQ(Replies().size(), 2u);
  PushInPlace(0, 0, 1, 2.0f, kOwn);
  EXPECT_EQ(Replies().size(), 1u);
  EXPECT_EQ(OwnCopy(0), Filled(6.0f));
}

// A worker dies right after a push: one Poll returns its last gradient, which completes the round,
// and its end.
TEST_F(SharedLaneTest, WhatAConnectionSaidBeforeItsEndInTheSameBurstCounts) {
  config_.on_loss = LossPolicy::kWait;
  Start(2, 2);
  Share(0);
  PushInPlace(0, 0, 1, 2.0f, kOwn);
  const std::vector<float> filled = Filled(4.0f);
  transport_.Deliver(lanes_[1], Gradient(0, 1, 0), filled);
  wire::MessageHeader last = Gradient(1, 1, 0);
  last.reply_address = kOwn;
  transport_.DeliverInPlace(lanes_[0], last, {memory_[0].data(), kBytes});
  transport_.Break(lanes_[0], TransportError::kPeerClosed);
  loop_.RunOnce();
  // Expect: the round is complete, also in the dead worker's memory, and there is no fault.
  EXPECT_EQ(Count(CoreCounter::refused_address), 0u);
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(OwnCopy(0), Filled(6.0f));
  EXPECT_EQ(Count(CoreCounter::gradients_in_place), 2u);
  // Expect: its replacement receives that round.
  Attach(0);
  Share(0);
  PushInPlace(0, 0, 1, 2.0f, kOwn);
  EXPECT_EQ(Replies().size(), 1u);
}

TEST_F(SharedLaneTest, AReplyOutsideOfSharedMemoryIsRefused) {
  Start(2, 2);
  Share(0);
  PushInPlace(0, 0, 1, 1.0f, SharedAddress{2 * kBytes});
  EXPECT_EQ(FaultOf(), FaultCode::kReplyAddress);
  EXPECT_EQ(Count(CoreCounter::refused_address), 1u);
}

TEST_F(SharedLaneTest, AReplyToALaneWithoutSharedMemoryIsRefused) {
  Start(2, 2);
  wire::MessageHeader header = Gradient(0, 1, 0);
  header.reply_address = SharedAddress{1};
  transport_.Deliver(lanes_[0], header, Filled(1.0f));
  loop_.RunOnce();
  EXPECT_EQ(FaultOf(), FaultCode::kReplyAddress);
}

TEST_F(SharedLaneTest, MisalignedMemoryIsRefused) {
  Start(2, 2);
  Share(0);
  transport_.DeliverInPlace(lanes_[0], Gradient(0, 1, 0), {memory_[0].data() + 1, kBytes});
  loop_.RunOnce();
  EXPECT_EQ(FaultOf(), FaultCode::kAlignment);
}

}  // namespace
}  // namespace phub::server
