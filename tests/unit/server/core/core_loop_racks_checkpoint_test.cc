// The core loop in a job that spans racks: saving and loading checkpoints.
#include <algorithm>
#include <cstring>

#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

using wire::MessageKind;
using wire::RoundOperation;

class CoreLoopRacksCheckpoint : public CoreLoopRacks {
 protected:
  static constexpr std::uint64_t kReductions = 12;
  static constexpr float kSaved = 7;

  // Loads as control does: parameters of the chunks at home, and only numbers of the others.
  void Bring() {
    image_ = MakeCheckpointImage({shard_->chunks(), shard_->chunk_count}, shard_->key_count);
    ASSERT_NE(image_, nullptr);
    const std::vector<float> saved = Filled(kSaved);
    for (std::uint32_t i = 0; i < image_->chunk_count; ++i) {
      CheckpointImage::ChunkImage& chunk = image_->chunks[i];
      ASSERT_EQ(chunk.parameters != nullptr, shard_->chunks()[i]->is_home);
      if (chunk.parameters != nullptr)
        std::memcpy(chunk.parameters, saved.data(), saved.size() * sizeof(float));
      chunk.reductions = kReductions;
      chunk.ready = true;
    }
    Order({.kind = Command::Kind::kLoadCheckpoint, .shard = shard_.get(), .image = image_.get()});
  }
  void PushLoad(std::uint32_t chunk) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      wire::MessageHeader load = Gradient(chunk, 1, 1);
      load.operation = RoundOperation::kLoad;
      transport_.Deliver(lanes_[rank], load);
    }
    loop_.RunOnce();
  }
  void DeliverLoads(std::uint32_t chunk) {
    for (const std::uint32_t rack : {1u, 2u}) {
      wire::MessageHeader load = FromPeer(chunk, 1, 0);
      load.operation = RoundOperation::kLoad;
      transport_.Deliver(peers_[rack], load);
    }
    loop_.RunOnce();
  }

  std::unique_ptr<CheckpointImage> image_;
};

TEST_F(CoreLoopRacksCheckpoint, TheHomePutsStateInPlaceOnceAllRacksAskAndSendsItToThem) {
  StartRack(0);
  LearnHash();
  Bring();
  const std::uint32_t chunk = ChunkWithHome(0);
  PushLoad(chunk);
  EXPECT_TRUE(Replies().empty());
  DeliverLoads(chunk);
  const auto results = Replies();
  ASSERT_EQ(results.size(), 4u);  // two racks, two ranks
  for (const auto& result : results) EXPECT_EQ(result.payload, Filled(kSaved));
  EXPECT_EQ(shard_->chunks()[chunk]->reductions, kReductions);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopRacksCheckpoint, AwayFromHomeALoadGoesUpWithoutPayloadAndItsResultComesDown) {
  StartRack(1);
  Bring();
  const std::uint32_t chunk = ChunkWithHome(2);
  PushLoad(chunk);
  const auto partials = Posted(MessageKind::kGradient);
  ASSERT_EQ(partials.size(), 1u);
  EXPECT_EQ(partials[0].header.operation, RoundOperation::kLoad);
  EXPECT_TRUE(partials[0].payload.empty());
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(-5));
  EXPECT_EQ(shard_->chunks()[chunk]->reductions, kReductions);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// A rank reports that it could not load, after it has pushed.
TEST_F(CoreLoopRacksCheckpoint, StateThatIsTakenBackWhileOtherRacksAreAwaitedIsAFault) {
  StartRack(0);
  LearnHash();
  Bring();
  const std::uint32_t chunk = ChunkWithHome(0);
  PushLoad(chunk);
  Order({.kind = Command::Kind::kLoadCheckpoint, .shard = shard_.get()});
  DeliverLoads(chunk);
  EXPECT_EQ(FaultOf(), FaultCode::kNoCheckpoint);
}

TEST_F(CoreLoopRacksCheckpoint, ALoadThatWasNotBroughtIsAFault) {
  StartRack(1);
  PushLoad(ChunkWithHome(2));
  EXPECT_EQ(FaultOf(), FaultCode::kNoCheckpoint);
}

TEST_F(CoreLoopRacksCheckpoint, ASnapshotIsOfTheChunksAtHomeAndWaitsForNoOthers) {
  StartRack(0);
  LearnHash();
  const std::uint32_t chunk = ChunkWithHome(0);
  image_ = MakeCheckpointImage({shard_->chunks(), shard_->chunk_count}, shard_->key_count);
  image_->keys[0].target = 1;
  EXPECT_EQ(image_->chunks_left, 1u);
  Order({.kind = Command::Kind::kTakeSnapshot, .shard = shard_.get(), .image = image_.get()});
  for (std::uint64_t iteration = 1; iteration <= 2; ++iteration) {
    for (const std::uint32_t rack : {1u, 2u}) {
      transport_.Deliver(peers_[rack], FromPeer(chunk, iteration, 0), Filled(6));
    }
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) Push(rank, chunk, iteration, 1, 6);
    Replies();
  }
  const Event event = Next(Event::Kind::kSnapshotTaken);
  EXPECT_EQ(event.image, image_.get());
  EXPECT_FALSE(image_->missed);
  // Expect: the state after the first round, although another round followed.
  float first = 0;
  std::memcpy(&first, image_->chunks[chunk].parameters, sizeof first);
  EXPECT_EQ(first, -0.5f * (2 * 6 + 2 * 6) / 6);
  EXPECT_EQ(image_->chunks[chunk].reductions, 1u);
}

// Expect: a save covers the chunks at home; a resuming rank receives all chunks that it reads here.
TEST_F(CoreLoopRacksCheckpoint, VersionsAreOfTheChunksAtHomeUnlessARankAsks) {
  StartRack(1);
  VersionReport report;
  report.keys.resize(1);
  for (const auto& [asking, count] : {std::pair{Rank::Max(), 1u}, std::pair{Rank{1}, 3u}}) {
    Order({.kind = Command::Kind::kReportVersions,
           .rank = asking,
           .shard = shard_.get(),
           .versions = &report});
    EXPECT_EQ(report.keys[0].chunk_count, count);
  }
}

}  // namespace
}  // namespace phub::server
