// Keys whose chunks have one sender or one receiver: which payload the engine sends, and what it
// receives where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "client/engine.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

// Three ranks with parts of two chunks, the second one short. This is rank 1.
class EngineMovementTest : public EngineTest {
 protected:
  static constexpr std::uint32_t kRanks = 3;
  static constexpr std::uint32_t kRest = 5;
  static constexpr std::uint32_t kPart = kChunkElements + kRest;

  void StartKey(KeyMovement movement, std::uint32_t slots, bool restart = false, Rank root = {}) {
    Start(1, slots, restart);
    parts_ = {movement, kRanks, root};
    const std::vector<std::uint32_t> bins(2 * parts_.count(), 0);
    const KeyPlacementView view{.name = "moved",
                                .key = KeyIndex{0},
                                .element_count = parts_.count() * kPart,
                                .parts = parts_,
                                .chunk_bins = bins};
    auto layouts = layout_->AddKeys({&view, 1});
    ASSERT_TRUE(layouts.ok()) << layouts.status();
    batch_.keys.push_back({.layout = layouts->front(), .rank = Rank{1}, .listener = &rounds_});
    Submit({.kind = Command::Kind::kAddKeys, .batch = &batch_});
    for (std::uint32_t i = 0; i < parts_.SentBy(Rank{1}) * kPart; ++i)
      gradients_.push_back(static_cast<float>(i));
    parameters_.assign(parts_.ReceivedBy(Rank{1}) * kPart, -1.0f);
    operation_ = MovesBytes(movement) ? wire::RoundOperation::kMove : wire::RoundOperation::kReduce;
  }
  // Runs a round. Expect: of every chunk what this rank sends, and every reply where it belongs.
  void ExpectRoundMoves() {
    const auto is_own = [](Rank rank) { return rank == kEveryRank || rank == Rank{1}; };
    PushRound();
    const auto posted = RunAndTake();
    ASSERT_THAT(posted, SizeIs(2 * parts_.count()));
    for (const auto& one : posted) {
      const std::uint32_t chunk = one.header.chunk.value;
      EXPECT_EQ(one.header.root, parts_.SenderOf(chunk / 2));
      const bool sends = is_own(parts_.SenderOf(chunk / 2));
      EXPECT_EQ(one.bytes.size(), sends ? ElementsOf(chunk) * sizeof(float) : 0u);
      EXPECT_EQ(one.header.slot == kNoSlot, !sends);
      if (!sends) continue;
      EXPECT_EQ(one.payload, Bytes(gradients_).data() + OffsetOf(chunk, true));
    }
    for (std::uint32_t chunk = 0; chunk < 2 * parts_.count(); ++chunk) {
      const bool receives = is_own(parts_.ReceiverOf(chunk / 2));
      ReplyWith(chunk, receives ? ElementsOf(chunk) : 0, static_cast<float>(chunk));
    }
    Run();
    EXPECT_EQ(rounds_.complete_count, 1);
    EXPECT_THAT(lanes_.closed_lanes, SizeIs(0));
    for (std::uint32_t chunk = 0; chunk < 2 * parts_.count(); ++chunk) {
      if (!is_own(parts_.ReceiverOf(chunk / 2))) continue;
      const auto first =
          parameters_.begin() + static_cast<std::ptrdiff_t>(OffsetOf(chunk, false) / sizeof(float));
      EXPECT_THAT(std::vector<float>(first, first + ElementsOf(chunk)),
                  Each(static_cast<float>(chunk)));
    }
  }
  // The offset in bytes of a chunk in this rank's gradients or parameters.
  std::size_t OffsetOf(std::uint32_t chunk, bool sent) const {
    const std::uint32_t part = chunk / 2;
    const std::size_t place = sent ? parts_.PlaceSent(part) : parts_.PlaceReceived(part);
    return (place * kPart + (chunk % 2 == 0 ? 0 : kChunkElements)) * sizeof(float);
  }
  void PushRound() {
    Submit({.kind = Command::Kind::kPush,
            .operation = operation_,
            .ticket = ++ticket_,
            .gradients = std::as_bytes(std::span(gradients_)).data(),
            .parameters = std::as_writable_bytes(std::span(parameters_)).data()});
  }
  static std::uint32_t ElementsOf(std::uint32_t chunk) {
    return chunk % 2 == 0 ? kChunkElements : kRest;
  }
  void ReplyWith(std::uint32_t chunk, std::uint32_t elements, float value) {
    const std::vector<float> payload(elements, value);
    wire::MessageHeader header = ReplyHeader(chunk, ticket_);
    header.payload_bytes = static_cast<std::uint32_t>(elements * sizeof(float));
    transport_.Deliver(0, header, Bytes(payload));
  }

  KeyParts parts_;
  KeyBatch batch_;
  RecordingRounds rounds_;
  std::vector<float> gradients_, parameters_;
  wire::RoundOperation operation_{};
  std::uint64_t ticket_ = 0;
};

TEST_F(EngineMovementTest, AGatherSendsItsPartAndHeadersOfTheOthers) {
  StartKey(KeyMovement::kGather, /*slots=*/1);
  PushRound();
  const auto posted = RunAndTake();
  // Expect: headers of the other ranks' chunks need no slot; the own part waits for its only slot.
  ASSERT_THAT(posted, SizeIs(5));
  std::map<std::uint32_t, FakeTransport::Posted> by_chunk;
  for (const auto& one : posted) by_chunk[one.header.chunk.value] = one;
  for (const auto& [chunk, one] : by_chunk) {
    EXPECT_EQ(one.header.operation, wire::RoundOperation::kMove);
    EXPECT_EQ(one.header.version, wire::kMoveVersion);
    EXPECT_EQ(one.header.root.value, chunk / 2);
    if (chunk == 2) continue;
    EXPECT_EQ(one.header.payload_bytes, 0u);
    EXPECT_EQ(one.header.slot, kNoSlot);
  }
  EXPECT_EQ(by_chunk[2].bytes.size(), kChunkBytes);
  EXPECT_EQ(by_chunk[2].payload, std::as_bytes(std::span(gradients_)).data());
  // A credit frees the slot, for the rest of the part.
  Credit(0, 2, by_chunk[2].header.slot);
  const auto rest = RunAndTake();
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_EQ(rest[0].header.chunk.value, 3u);
  EXPECT_EQ(rest[0].payload, std::as_bytes(std::span(gradients_)).data() + kChunkBytes);
  EXPECT_EQ(rest[0].bytes.size(), kRest * sizeof(float));
  // Expect: all parts arrive in order.
  for (std::uint32_t chunk = 0; chunk < 6; ++chunk)
    ReplyWith(chunk, ElementsOf(chunk), static_cast<float>(chunk));
  Run();
  EXPECT_EQ(rounds_.complete_count, 1);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(parameters_[rank * kPart], static_cast<float>(2 * rank));
    EXPECT_EQ(parameters_[rank * kPart + kChunkElements], static_cast<float>(2 * rank + 1));
  }
  EXPECT_EQ(engine_->free_slots(0), 1u);
  EXPECT_EQ(engine_->counters().gradients_in_place, 0u);
  EXPECT_EQ(engine_->job_iteration(), 1u);
}

TEST_F(EngineMovementTest, AnOwnPartThatIsSentFromTheWholeIsNotWritten) {
  StartKey(KeyMovement::kGather, /*slots=*/2);
  Submit({.kind = Command::Kind::kPush,
          .operation = operation_,
          .ticket = ++ticket_,
          .gradients = std::as_bytes(std::span(parameters_).subspan(kPart)).data(),
          .parameters = std::as_writable_bytes(std::span(parameters_)).data()});
  EXPECT_THAT(RunAndTake(), SizeIs(6));
  for (std::uint32_t chunk = 0; chunk < 6; ++chunk) ReplyWith(chunk, ElementsOf(chunk), 7.0f);
  Run();
  EXPECT_EQ(rounds_.complete_count, 1);
  const std::span<const float> all(parameters_);
  EXPECT_THAT(all.subspan(kPart, kPart), Each(-1.0f));
  EXPECT_THAT(all.first(kPart), Each(7.0f));
  EXPECT_THAT(all.last(kPart), Each(7.0f));
}

TEST_F(EngineMovementTest, AReduceScatterReceivesItsPartOnly) {
  StartKey(KeyMovement::kReduceScatter, /*slots=*/6);
  PushRound();
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(6));
  std::size_t bytes = 0;
  for (const auto& one : posted) bytes += one.bytes.size();
  EXPECT_EQ(bytes, kRanks * kPart * sizeof(float));
  for (std::uint32_t chunk = 0; chunk < 6; ++chunk) {
    const bool owned = chunk / 2 == 1;
    ReplyWith(chunk, owned ? ElementsOf(chunk) : 0, static_cast<float>(chunk));
  }
  Run();
  EXPECT_EQ(rounds_.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 6u);
  EXPECT_THAT(std::vector<float>(parameters_.begin(), parameters_.begin() + kChunkElements),
              Each(2.0f));
  EXPECT_THAT(std::vector<float>(parameters_.begin() + kChunkElements, parameters_.end()),
              Each(3.0f));
}

TEST_F(EngineMovementTest, PayloadForAnotherRanksPartEndsTheLane) {
  StartKey(KeyMovement::kReduceScatter, 6);
  PushRound();
  Run();
  ReplyWith(0, kChunkElements, 9.0f);
  Run();
  ASSERT_THAT(lanes_.closed_lanes, SizeIs(1));
  EXPECT_THAT(parameters_, Each(-1.0f));
}

TEST_F(EngineMovementTest, AReplyWithoutTheOwnPartEndsTheLane) {
  StartKey(KeyMovement::kReduceScatter, 6);
  PushRound();
  Run();
  ReplyWith(2, 0, 0.0f);
  Run();
  ASSERT_THAT(lanes_.closed_lanes, SizeIs(1));
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kPayloadBytes);
}

TEST_F(EngineMovementTest, AGatherIsSentAgainOnANewLane) {
  StartKey(KeyMovement::kGather, /*slots=*/4);
  PushRound();
  EXPECT_THAT(RunAndTake(), SizeIs(6));
  ReplyWith(0, kChunkElements, 1.0f);
  Run();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  // Expect: every chunk without a reply.
  EXPECT_THAT(Chunks(RunAndTake()), ::testing::UnorderedElementsAre(1, 2, 3, 4, 5));
}

TEST_F(EngineMovementTest, AnAllToAllSendsAndReceivesAPartOfEveryRank) {
  StartKey(KeyMovement::kAllToAll, /*slots=*/6);
  ExpectRoundMoves();
}

TEST_F(EngineMovementTest, AScatterIsSentByItsRoot) {
  StartKey(KeyMovement::kScatter, /*slots=*/6, false, Rank{1});
  ExpectRoundMoves();
}

TEST_F(EngineMovementTest, AnotherRankHasNoGradientsForAScatter) {
  StartKey(KeyMovement::kScatter, /*slots=*/1, false, Rank{2});
  EXPECT_THAT(gradients_, SizeIs(0));
  ExpectRoundMoves();
}

TEST_F(EngineMovementTest, AGatherToOneArrivesAtItsRoot) {
  StartKey(KeyMovement::kGatherToOne, /*slots=*/2, false, Rank{1});
  ExpectRoundMoves();
}

TEST_F(EngineMovementTest, AnotherRankHasNoParametersForAGatherToOne) {
  StartKey(KeyMovement::kGatherToOne, /*slots=*/2, false, Rank{0});
  EXPECT_THAT(parameters_, SizeIs(0));
  ExpectRoundMoves();
}

TEST_F(EngineMovementTest, AGatherMayLieInItsResult) {
  StartKey(KeyMovement::kGather, 4);
  transport_.Share(std::as_writable_bytes(std::span(parameters_)), /*writable=*/true);
  Submit({.kind = Command::Kind::kPush,
          .operation = operation_,
          .ticket = ++ticket_,
          .gradients = std::as_bytes(std::span(parameters_)).data() + kPart * sizeof(float),
          .parameters = std::as_writable_bytes(std::span(parameters_)).data()});
  EXPECT_THAT(RunAndTake(), SizeIs(6));
  EXPECT_EQ(engine_->counters().gradients_in_place, 2u);
  EXPECT_EQ(engine_->free_slots(0), 4u);
}

}  // namespace
}  // namespace phub::client
