// Keys whose chunks have one sender or one receiver.
#include <bit>
#include <cstring>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

// Three ranks; each chunk is a part.
class MovementTest : public CoreLoopTest {
 protected:
  static constexpr std::uint32_t kRanks = 3;

  void StartMovement(KeyMovement movement, std::uint32_t slots = 2, bool restart = false,
                     Rank root = {}) {
    key_.movement = movement;
    parts_ = {movement, kRanks, root};
    config_.restart = restart;
    if (restart) config_.on_loss = LossPolicy::kWait;
    for (std::uint32_t part = 0; part < parts_.count(); ++part) {
      key_.chunks.push_back(
          {kElements, part * kElements, parts_.SenderOf(part), parts_.ReceiverOf(part)});
    }
    Start(kRanks, slots, Optimizer::kNone, Reduction::kSum, /*chunks=*/0);
  }
  wire::MessageHeader Move(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t slot) {
    wire::MessageHeader header = Gradient(chunk, iteration, slot);
    header.version = wire::kMoveVersion;
    header.operation = wire::RoundOperation::kMove;
    header.root = parts_.SenderOf(chunk);
    return header;
  }
  void PushHeader(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration) {
    transport_.Deliver(lanes_[rank], Move(chunk, iteration, kNoSlot.value));
    loop_.RunOnce();
  }
  void PushPart(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration,
                const std::vector<float>& part) {
    transport_.Deliver(lanes_[rank], Move(chunk, iteration, 0), part);
    loop_.RunOnce();
  }
  void ExpectBroadcastRefused(KeyMovement movement) {
    StartMovement(movement);
    wire::MessageHeader header = Gradient(0, 1, 0);
    header.operation = wire::RoundOperation::kAssign;
    transport_.Deliver(lanes_[0], header, Filled(1.0f));
    EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
  }
  // Runs a round of every chunk. Expect: each part arrives at its receiver, and nowhere else.
  void ExpectRoundMoves() {
    for (std::uint32_t chunk = 0; chunk < parts_.count(); ++chunk) {
      const std::uint32_t sender = parts_.SenderOf(chunk).value;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        if (rank != sender) PushHeader(rank, chunk, 1);
      }
      EXPECT_TRUE(Replies().empty());
      const std::vector<float> part = Filled(static_cast<float>(chunk + 1));
      PushPart(sender, chunk, 1, part);
      const auto replies = Replies();
      ASSERT_EQ(replies.size(), kRanks);
      const std::uint32_t receiver = parts_.ReceiverOf(chunk).value;
      for (const auto& reply : replies) {
        EXPECT_EQ(reply.payload, reply.connection == lanes_[receiver] ? part : std::vector<float>())
            << "chunk " << chunk;
      }
    }
    const std::uint64_t bytes = parts_.count() * kElements * sizeof(float);
    EXPECT_EQ(Count(CoreCounter::gradient_bytes), bytes);
    EXPECT_EQ(Count(CoreCounter::reply_bytes), bytes);
    EXPECT_EQ(FaultOf(), FaultCode::kNone);
  }

  KeyParts parts_;
};

bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(MovementTest, AGatherSendsTheOwnersBytesToEveryRank) {
  StartMovement(KeyMovement::kGather);
  // Receive headers from all ranks first; they hold no slots.
  for (std::uint32_t chunk = 0; chunk < kRanks; ++chunk) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank != chunk) PushHeader(rank, chunk, 1);
    }
  }
  EXPECT_TRUE(Replies().empty());
  EXPECT_EQ(shard_->lanes[0].slots_used, 0u);
  for (std::uint32_t chunk = 0; chunk < kRanks; ++chunk) {
    // A signaling NaN, a denormal number and a negative zero.
    std::vector<float> part = Filled(static_cast<float>(chunk));
    part[1] = std::bit_cast<float>(0x7f800001u);
    part[2] = std::bit_cast<float>(0x00000001u);
    part[3] = -0.0f;
    PushPart(chunk, chunk, 1, part);
    // Expect: every rank has the same bytes.
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), kRanks);
    for (const auto& reply : replies) EXPECT_TRUE(SameBytes(reply.payload, part));
  }
  // Expect: only the owners' payloads were received, and it is an iteration.
  EXPECT_EQ(Count(CoreCounter::gradient_bytes), kRanks * kElements * sizeof(float));
  EXPECT_EQ(Count(CoreCounter::reply_bytes), kRanks * kRanks * kElements * sizeof(float));
  EXPECT_EQ(Count(CoreCounter::gradients_in_place), 0u);
  EXPECT_EQ(shard_->chunks()[0]->reductions, 1u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone) << "bytes are not screened";
}

TEST_F(MovementTest, AGatherWaitsForTheHeaderOfEveryRank) {
  StartMovement(KeyMovement::kGather);
  PushPart(0, 0, 1, Filled(5.0f));
  PushHeader(2, 0, 1);
  EXPECT_TRUE(Replies().empty());
  PushHeader(1, 0, 1);
  EXPECT_EQ(Replies().size(), kRanks);
}

TEST_F(MovementTest, AFoldedPartOfAGatherKeepsItsBytes) {
  StartMovement(KeyMovement::kGather, /*slots=*/1);
  std::vector<float> part = Filled(1.0f);
  part[0] = std::bit_cast<float>(0x7fa00000u);
  // The only slot of rank 0 is full, so its part moves to the accumulator.
  PushPart(0, 0, 1, part);
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  PushHeader(1, 0, 1);
  PushHeader(2, 0, 1);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), kRanks);
  EXPECT_TRUE(SameBytes(replies[0].payload, part));
}

TEST_F(MovementTest, ASumOfAGatherIsRefused) {
  StartMovement(KeyMovement::kGather);
  transport_.Deliver(lanes_[0], Gradient(0, 1, 0), Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(MovementTest, APartFromARankThatDoesNotOwnItIsRefused) {
  StartMovement(KeyMovement::kGather);
  transport_.Deliver(lanes_[1], Move(0, 1, 0), Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kPayloadSize);
}

TEST_F(MovementTest, AnotherOwnerThanThatOfTheLayoutIsRefused) {
  StartMovement(KeyMovement::kGather);
  wire::MessageHeader header = Move(0, 1, 0);
  header.root = Rank{1};
  transport_.Deliver(lanes_[1], header, Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(MovementTest, AMoveOfAnOrdinaryKeyIsRefused) {
  Start(2, 1);
  wire::MessageHeader header = Move(0, 1, 0);
  EXPECT_EQ(header.root, kEveryRank) << "the number that ordinary chunks have";
  transport_.Deliver(lanes_[0], header, Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(MovementTest, AnAllToAllSendsEachPartFromOneRankToOne) {
  StartMovement(KeyMovement::kAllToAll);
  ExpectRoundMoves();
}

TEST_F(MovementTest, AScatterSendsTheRootsPartsToTheirRanks) {
  StartMovement(KeyMovement::kScatter, 2, false, Rank{1});
  ExpectRoundMoves();
}

TEST_F(MovementTest, AGatherToOneSendsEveryPartToTheRoot) {
  StartMovement(KeyMovement::kGatherToOne, 2, false, Rank{2});
  ExpectRoundMoves();
}

TEST_F(MovementTest, APartOfAScatterFromAnotherRankThanTheRootIsRefused) {
  StartMovement(KeyMovement::kScatter, 2, false, Rank{1});
  wire::MessageHeader header = Move(0, 1, 0);
  header.root = Rank{0};
  transport_.Deliver(lanes_[0], header, Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(MovementTest, ABroadcastOfAnAllToAllIsRefused) {
  ExpectBroadcastRefused(KeyMovement::kAllToAll);
}

TEST_F(MovementTest, APullOfAnAllToAllHasPayloadForItsReceiverOnly) {
  StartMovement(KeyMovement::kAllToAll, 2, /*restart=*/true);
  ExpectRoundMoves();
  for (const std::uint32_t rank : {0u, 2u}) {
    wire::MessageHeader pull = Gradient(5, 1, 0);  // from rank 1 to rank 2
    pull.kind = wire::MessageKind::kPull;
    transport_.Deliver(lanes_[rank], pull);
    loop_.RunOnce();
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_EQ(replies[0].payload, rank == 2 ? Filled(6.0f) : std::vector<float>());
  }
}

TEST_F(MovementTest, ABroadcastOfAReduceScatterIsRefused) {
  ExpectBroadcastRefused(KeyMovement::kReduceScatter);
}

TEST_F(MovementTest, AReduceScatterSendsTheSumToItsOwnerOnly) {
  StartMovement(KeyMovement::kReduceScatter);
  for (std::uint32_t chunk = 0; chunk < kRanks; ++chunk) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      Push(rank, chunk, 1, 0, static_cast<float>(rank + 1));
    }
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), kRanks);
    for (const auto& reply : replies) {
      EXPECT_EQ(reply.header.iteration.value, 1u);
      const bool is_owner = reply.connection == lanes_[chunk];
      EXPECT_EQ(reply.header.payload_bytes, is_owner ? kElements * sizeof(float) : 0u);
      EXPECT_EQ(reply.payload, is_owner ? Filled(6.0f) : std::vector<float>());
    }
  }
  EXPECT_EQ(Count(CoreCounter::gradient_bytes), kRanks * kRanks * kElements * sizeof(float));
  EXPECT_EQ(Count(CoreCounter::reply_bytes), kRanks * kElements * sizeof(float));
}

TEST_F(MovementTest, ARepeatedPushOfAReduceScatterIsAnsweredWithoutPayloadAgain) {
  StartMovement(KeyMovement::kReduceScatter);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) Push(rank, 0, 1, 0, 1.0f);
  EXPECT_EQ(Replies().size(), kRanks);
  for (const std::uint32_t rank : {0u, 2u}) {
    Push(rank, 0, 1, 0, 1.0f);
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_EQ(replies[0].payload, rank == 0 ? Filled(3.0f) : std::vector<float>());
  }
}

TEST_F(MovementTest, RepliesThatWaitForTheWindowKeepTheirPayload) {
  config_.replies_per_lane_max = 1;
  StartMovement(KeyMovement::kReduceScatter, /*slots=*/3);
  transport_.set_report_sent(false);
  for (std::uint32_t chunk = 0; chunk < kRanks; ++chunk) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) Push(rank, chunk, 1, chunk, 1.0f);
  }
  EXPECT_EQ(Replies().size(), kRanks) << "one for each lane";
  transport_.set_report_sent(true);
  for (int i = 0; i < 10; ++i) loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2 * kRanks);
  for (const auto& reply : replies) {
    const bool is_owner = reply.connection == lanes_[reply.header.chunk.value];
    EXPECT_EQ(reply.payload, is_owner ? Filled(3.0f) : std::vector<float>());
  }
}

TEST_F(MovementTest, APullOfAReduceScatterHasPayloadForTheOwnerOnly) {
  StartMovement(KeyMovement::kReduceScatter, 2, /*restart=*/true);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) Push(rank, 1, 1, 0, 1.0f);
  EXPECT_EQ(Replies().size(), kRanks);
  for (const std::uint32_t rank : {0u, 1u}) {
    wire::MessageHeader pull = Gradient(1, 1, 0);
    pull.kind = wire::MessageKind::kPull;
    transport_.Deliver(lanes_[rank], pull);
    loop_.RunOnce();
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_EQ(replies[0].payload, rank == 1 ? Filled(3.0f) : std::vector<float>());
  }
}

TEST_F(MovementTest, AnAddressOfARankThatDoesNotOwnTheChunkIsNotWritten) {
  StartMovement(KeyMovement::kReduceScatter);
  std::array<std::vector<std::byte>, kRanks> memory;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    memory[rank].resize(kElements * sizeof(float));
    transport_.Share(lanes_[rank], memory[rank]);
    wire::MessageHeader header = Gradient(2, 1, 0);
    header.reply_address = SharedAddress{1};
    transport_.Deliver(lanes_[rank], header, Filled(2.0f));
    loop_.RunOnce();
  }
  EXPECT_EQ(Replies().size(), kRanks);
  const std::vector<std::byte> zeros(kElements * sizeof(float));
  EXPECT_EQ(memory[0], zeros);
  EXPECT_EQ(memory[1], zeros);
  EXPECT_EQ(std::memcmp(memory[2].data(), Filled(6.0f).data(), zeros.size()), 0);
}

TEST_F(MovementTest, ANaNInAReduceScatterNamesItsRank) {
  StartMovement(KeyMovement::kReduceScatter);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    Push(rank, 0, 1, 0, rank == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
  }
  const Event event = Next(Event::Kind::kNonFinite);
  ASSERT_EQ(event.kind, Event::Kind::kNonFinite);
  EXPECT_EQ(event.source, Rank{1});
}

}  // namespace
}  // namespace phub::server
