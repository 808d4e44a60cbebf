// Rounds of pooled keys that move: one rank's payload goes to all others.
#include "tests/unit/server/core/core_loop_pool_fixture.h"

namespace phub::server {
namespace {

class PoolMoveTest : public PoolTest {
 protected:
  static constexpr std::uint32_t kRanks = 3;

  // The header of a push, by the root if `slot` is given.
  wire::MessageHeader Moved(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t root,
                            std::uint64_t elements, std::uint32_t slot = kNoSlot.value) {
    wire::MessageHeader header =
        Pooled(chunk, iteration, slot, ElementType::kF32, {.elements = elements, .sequence = 3});
    header.version = wire::kPoolMoveVersion;
    header.operation = wire::RoundOperation::kPoolMove;
    header.root = Rank{root};
    return header;
  }
  void Push(std::uint32_t rank, const wire::MessageHeader& header,
            const std::vector<float>& values = {}) {
    PushPooled(rank, header, values);
  }
  // Expect: a fault that rank 0 causes with this push.
  void ExpectRefused(FaultCode code, const wire::MessageHeader& header,
                     const std::vector<float>& values = {}) {
    Push(0, header, values);
    EXPECT_EQ(FaultOf(), code);
    shard_->faulted = false;
    Attach(0);
  }
};

TEST_F(PoolMoveTest, TheRootsBytesGoToAllOthers) {
  StartPool(4, kRanks);
  const std::vector<float> part(3, 5.0f);
  for (std::uint32_t root = 0; root < kRanks; ++root) {
    const std::uint64_t round = root + 1;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      const bool sends = rank == root;
      const std::uint32_t slot = sends ? 0 : kNoSlot.value;
      Push(rank, Moved(0, round, root, kElements + 3, slot),
           sends ? Filled(4.0f) : std::vector<float>());
      Push(rank, Moved(1, round, root, kElements + 3, sends ? 1 : kNoSlot.value),
           sends ? part : std::vector<float>());
    }
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 2 * kRanks);
    for (const auto& reply : replies) {
      const std::vector<float> sent = reply.header.chunk.value == 0 ? Filled(4.0f) : part;
      EXPECT_EQ(reply.payload, reply.connection == lanes_[root] ? std::vector<float>() : sent);
      EXPECT_EQ(reply.header.type, ElementType::kF32);
      EXPECT_EQ(reply.header.iteration.value, round);
    }
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// Rank 0's only slot holds its part of a round that others have not started, and it sends the next
// chunk: the part is put aside.
TEST_F(PoolMoveTest, ARootWithoutAFreeSlotDoesNotBlockItself) {
  StartPool(/*slots=*/1, kRanks);
  Push(0, Moved(0, 1, 0, 5, 0), std::vector<float>(5, 7.0f));
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  for (std::uint32_t rank = 1; rank < kRanks; ++rank) Push(rank, Moved(0, 1, 0, 5));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), kRanks);
  for (const auto& reply : replies)
    EXPECT_EQ(reply.payload.size(), reply.connection == lanes_[0] ? 0u : 5u);
  EXPECT_EQ(replies.back().payload, std::vector<float>(5, 7.0f));
}

// The root is not the lowest rank, so the round has no ready prefix. The only slot serves another
// round before this one can end.
TEST_F(PoolMoveTest, ARootWithoutAFreeSlotDoesNotWaitForLowerRanks) {
  StartPool(/*slots=*/1, kRanks);
  const std::vector<float> sent(5, 7.0f);
  Push(2, Moved(0, 1, 2, 5, 0), sent);
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  for (const std::uint32_t rank : {2u, 1u, 0u}) {
    const bool sends = rank == 2;
    Push(rank, Moved(1, 1, 2, kElements + 2, sends ? 0 : kNoSlot.value),
         sends ? std::vector<float>(2, 9.0f) : std::vector<float>());
  }
  EXPECT_EQ(Replies().size(), kRanks);
  // The lane is lost and attached again: what was put aside is discarded and sent again.
  Attach(2);
  Push(2, Moved(0, 1, 2, 5, 0), sent);
  Push(0, Moved(0, 1, 2, 5));
  EXPECT_TRUE(Replies().empty());
  Push(1, Moved(0, 1, 2, 5));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), kRanks);
  for (const auto& reply : replies)
    EXPECT_EQ(reply.payload, reply.connection == lanes_[2] ? std::vector<float>() : sent);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(PoolMoveTest, ARepeatedPushIsAnsweredAsBefore) {
  StartPool(4, kRanks);
  const std::vector<float> sent(6, 2.0f);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    Push(rank, Moved(0, 1, 1, 6, rank == 1 ? 0 : kNoSlot.value),
         rank == 1 ? sent : std::vector<float>());
  EXPECT_EQ(Replies().size(), kRanks);
  // The next round is a sum, whose root would be rank 0.
  Push(2, Pooled(0, 2, 0, ElementType::kF32, {.elements = 2}), std::vector<float>(2, 1.0f));
  Push(0, Moved(0, 1, 1, 6));
  auto replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].payload, sent);
  Push(1, Moved(0, 1, 1, 6, 0), sent);
  replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].payload, std::vector<float>());
  // Another root than before: not the push of that round.
  Push(0, Moved(0, 1, 2, 6));
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
}

TEST_F(PoolMoveTest, RanksThatDifferAreNamed) {
  StartPool(4, kRanks);
  Push(2, Moved(0, 1, 1, 6));
  const auto expect = [&](const wire::MessageHeader& header, const std::vector<float>& values) {
    Push(0, header, values);
    const Event fault = Next(Event::Kind::kFault);
    EXPECT_EQ(fault.code, FaultCode::kRoundMismatch);
    EXPECT_EQ(fault.source, Rank{0});
    EXPECT_EQ(fault.other, Rank{2});
    EXPECT_EQ(shard_->conflict.source.operation, header.operation);
    EXPECT_EQ(shard_->conflict.source.root, header.root);
    EXPECT_EQ(shard_->conflict.other.operation, wire::RoundOperation::kPoolMove);
    EXPECT_EQ(shard_->conflict.other.root, Rank{1});
    shard_->faulted = false;
    shard_->conflict = {};
    Attach(0);
  };
  const std::vector<float> six(6, 1.0f);
  expect(Moved(0, 1, 0, 6, 0), six);  // each of two ranks would send
  expect(Moved(0, 1, 2, 6), {});
  expect(Moved(0, 1, 1, 7), {});
}

TEST_F(PoolMoveTest, ASumIsAnotherRoundThanABroadcast) {
  StartPool(4, kRanks);
  Push(2, Moved(0, 1, 0, 6));
  Push(0, Pooled(0, 1, 0, ElementType::kF32, {.elements = 6, .sequence = 3}),
       std::vector<float>(6, 1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
}

TEST_F(PoolMoveTest, PushesThatDoNotFitAreRefused) {
  StartPool(4, kRanks);
  const std::vector<float> six(6, 1.0f);
  ExpectRefused(FaultCode::kRoundMismatch, Moved(0, 1, kRanks, 6));  // no such rank
  ExpectRefused(FaultCode::kRoundMismatch, Moved(0, 1, UINT32_MAX, 6));
  ExpectRefused(FaultCode::kPayloadSize, Moved(0, 1, 1, 6, 0), six);  // not the root
  ExpectRefused(FaultCode::kPayloadSize, Moved(0, 1, 0, 6));          // the root, with nothing
  ExpectRefused(FaultCode::kPayloadSize, Moved(1, 1, 1, 6));          // not covered
  ExpectRefused(FaultCode::kPayloadSize, Moved(0, 1, 1, 4 * kElements + 1));  // over its capacity
  ExpectRefused(FaultCode::kPayloadSize, Moved(0, 1, 1, 0));
}

TEST_F(PoolMoveTest, AnOrdinaryKeyHasNoSuchRounds) {
  Start(2, 1);
  Push(0, Moved(0, 1, 1, kElements));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

}  // namespace
}  // namespace phub::server
