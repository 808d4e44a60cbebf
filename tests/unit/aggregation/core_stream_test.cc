#include "common/aggregation/core_stream.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace phub::aggregation {
namespace {

// Two ranks, two positions of two blocks. Chunk 0 has two blocks, chunk 1 has one.
class SumCore : public ::testing::Test {
 protected:
  SumCore() {
    AddChunk(2, Iteration{7});
    AddChunk(1, Iteration{7});
    core_.Open(LeaseNumber{5}, actions_);
    Actions();
  }

  static std::string TextOf(const CoreAction& action) {
    const std::string chunk = std::to_string(action.chunk.value);
    const std::string position = std::to_string(action.position.value);
    const std::string to =
        action.rank == kEveryRank ? "" : " to " + std::to_string(action.rank.value);
    switch (action.kind) {
      case CoreAction::Kind::kStreamIs: return "stream " + std::to_string(action.lease.value) + to;
      case CoreAction::Kind::kAssign: return "assign " + chunk + " at " + position + to;
      case CoreAction::Kind::kUseTcp: return "use tcp " + chunk + to;
      case CoreAction::Kind::kAnswer: return "answer " + chunk + to;
      case CoreAction::Kind::kReady: return "ready " + chunk;
      case CoreAction::Kind::kFold: return "fold " + chunk + "." + std::to_string(action.block);
      case CoreAction::Kind::kFoldPushed: return "fold pushed " + chunk;
      case CoreAction::Kind::kClear: return "clear " + chunk;
      case CoreAction::Kind::kComplete: return "complete " + chunk;
    }
    return "?";
  }
  // The actions since the last call, as text.
  std::string Actions() {
    std::string text;
    for (const CoreAction& action : actions_) text += (text.empty() ? "" : ", ") + TextOf(action);
    actions_.clear();
    return text;
  }
  bool Announce(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration = 7,
                std::uint32_t lease = 5) {
    const std::vector<std::uint8_t> exponents(chunk < blocks_.size() ? blocks_[chunk] : 0);
    return core_.Announce(Rank{rank}, LeaseNumber{lease}, ChunkIndex{chunk}, Iteration{iteration},
                          exponents, actions_);
  }
  bool AnnounceWith(std::uint32_t rank, std::vector<std::uint8_t> exponents,
                    std::uint32_t lease = 5) {
    return core_.Announce(Rank{rank}, LeaseNumber{lease}, ChunkIndex{0}, Iteration{7}, exponents,
                          actions_);
  }
  std::vector<std::uint8_t> Exponents() {
    const auto exponents = core_.Exponents(ChunkIndex{0});
    return {exponents.begin(), exponents.end()};
  }
  void AddChunk(std::uint32_t blocks, Iteration first) {
    core_.AddChunk(blocks, first);
    blocks_.push_back(blocks);
  }
  bool Push(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration = 7) {
    return core_.Push(Rank{rank}, ChunkIndex{chunk}, Iteration{iteration}, actions_);
  }
  void Open(std::uint32_t chunk, std::uint64_t iteration = 7) {
    ASSERT_TRUE(Announce(0, chunk, iteration));
    ASSERT_TRUE(Announce(1, chunk, iteration));
    ASSERT_TRUE(core_.CanAssign(ChunkIndex{chunk}));
    core_.Assign(ChunkIndex{chunk}, actions_);
    Actions();
  }
  SumVerdict Sum(std::uint16_t slot, std::uint32_t phase, std::uint32_t lease = 5,
                 std::uint8_t exponent = 0) {
    phub_packet packet{};
    packet.exponent = exponent;
    packet.kind = PHUB_PACKET_SUM;
    packet.lease = lease;
    packet.slot = slot;
    packet.phase = phase;
    return core_.Sum(packet, actions_);
  }

  CoreActions actions_;
  std::vector<std::uint32_t> blocks_;  // by chunk
  CoreStream core_{{.positions = 2, .blocks = 2}, 2};
};

TEST_F(SumCore, AssignsAChunkOnceAllRanksHaveAnnouncedIt) {
  EXPECT_TRUE(Announce(1, 0));
  EXPECT_TRUE(Announce(1, 0)) << "again";
  EXPECT_EQ(Actions(), "");
  EXPECT_FALSE(core_.CanAssign(ChunkIndex{0}));
  EXPECT_TRUE(Announce(0, 0));
  EXPECT_EQ(Actions(), "ready 0");
  core_.Assign(ChunkIndex{0}, actions_);
  EXPECT_EQ(Actions(), "assign 0 at 0");
  EXPECT_FALSE(core_.CanAssign(ChunkIndex{0}));
}

TEST_F(SumCore, APositionIsCompleteOnceAllBlocksAreFolded) {
  Open(0);
  EXPECT_TRUE(core_.IsMissing(Position{0}, 0) && core_.IsMissing(Position{0}, 1));
  EXPECT_EQ(Sum(1, 0), SumVerdict::kFolded);
  EXPECT_EQ(Actions(), "fold 0.1");
  EXPECT_EQ(Sum(1, 0), SumVerdict::kRepeated);
  EXPECT_EQ(Actions(), "");
  EXPECT_TRUE(core_.IsMissing(Position{0}, 0));
  EXPECT_FALSE(core_.IsMissing(Position{0}, 1));
  EXPECT_FALSE(core_.IsMissing(Position{2}, 0)) << "it is not open";
  EXPECT_EQ(Sum(0, 0), SumVerdict::kFolded);
  EXPECT_EQ(Actions(), "fold 0.0, complete 0");
  EXPECT_FALSE(core_.IsMissing(Position{0}, 0));
  EXPECT_EQ(Sum(1, 0), SumVerdict::kOld);
  EXPECT_EQ(Actions(), "");
  EXPECT_EQ(core_.iteration(ChunkIndex{0}), Iteration{8});
}

TEST_F(SumCore, ReusesAPlaceOnlyOnceItsPositionIsComplete) {
  Open(0);
  Open(1);
  Sum(2, 0);
  EXPECT_EQ(Actions(), "fold 1.0, complete 1");
  EXPECT_TRUE(Announce(0, 1, 8));
  EXPECT_TRUE(Announce(1, 1, 8));
  EXPECT_FALSE(core_.CanAssign(ChunkIndex{1})) << "position 2 needs the place of position 0";
  Sum(0, 0);
  Sum(1, 0);
  ASSERT_TRUE(core_.CanAssign(ChunkIndex{1}));
  Actions();
  core_.Assign(ChunkIndex{1}, actions_);
  EXPECT_EQ(Actions(), "assign 1 at 2");
  EXPECT_EQ(Sum(0, 0), SumVerdict::kOld) << "of position 0";
  EXPECT_EQ(Sum(0, 2), SumVerdict::kOld);
  EXPECT_EQ(Actions(), "");
  EXPECT_EQ(Sum(0, 1), SumVerdict::kFolded);
}

TEST_F(SumCore, DropsSumsOfOtherLeasesPlacesAndBlocks) {
  EXPECT_EQ(Sum(0, 0), SumVerdict::kOld) << "nothing is open";
  Open(1);
  EXPECT_EQ(Sum(0, 0, 4), SumVerdict::kOld);
  EXPECT_EQ(Sum(4, 0), SumVerdict::kWrong);
  EXPECT_EQ(Sum(1, 0), SumVerdict::kWrong) << "chunk 1 has one block";
  core_.Close(actions_);
  Actions();
  EXPECT_EQ(Sum(0, 0), SumVerdict::kOld);
  EXPECT_EQ(Actions(), "");
}

TEST_F(SumCore, ClosingClearsOpenPositionsAndRanksPush) {
  Open(0);
  Sum(0, 0);
  EXPECT_TRUE(Announce(0, 1));
  Actions();
  core_.Close(actions_);
  EXPECT_EQ(Actions(), "clear 0, stream 0");
  core_.Close(actions_);
  EXPECT_EQ(Actions(), "");
  EXPECT_TRUE(Push(1, 0));
  EXPECT_TRUE(Push(1, 0)) << "again";
  EXPECT_EQ(Actions(), "");
  EXPECT_TRUE(Push(0, 0));
  EXPECT_EQ(Actions(), "fold pushed 0, complete 0");
  EXPECT_TRUE(Push(0, 1));
  core_.Open(LeaseNumber{6}, actions_);
  EXPECT_EQ(Actions(), "stream 6");
  EXPECT_TRUE(Announce(1, 1, 7, 6));
  EXPECT_EQ(Actions(), "use tcp 1 to 1") << "rank 0 has pushed";
  EXPECT_TRUE(Announce(0, 0, 8, 6));
  EXPECT_TRUE(Push(1, 0, 8));
  EXPECT_EQ(Actions(), "use tcp 0 to 0") << "rank 0 had announced";
  EXPECT_TRUE(Push(0, 0, 8));
  EXPECT_EQ(Actions(), "fold pushed 0, complete 0");
}

TEST_F(SumCore, IgnoresAnnouncementsForAnOldLease) {
  EXPECT_TRUE(Announce(0, 0, 7, 4));
  EXPECT_TRUE(Announce(1, 0));
  EXPECT_EQ(Actions(), "");
}

TEST_F(SumCore, AnswersWhatIsComplete) {
  Open(1);
  Sum(0, 0);
  Actions();
  EXPECT_TRUE(Announce(0, 1, 7, 4)) << "even for an old lease";
  EXPECT_TRUE(Push(1, 1));
  EXPECT_EQ(Actions(), "answer 1 to 0, answer 1 to 1");
}

TEST_F(SumCore, AssignsOpenPositionsAgainOnANewLane) {
  Open(0);
  Open(1);
  core_.LaneReopened(Rank{1}, actions_);
  EXPECT_EQ(Actions(), "stream 5 to 1, assign 0 at 0 to 1, assign 1 at 1 to 1");
}

TEST_F(SumCore, AReplacedRankPushesAgain) {
  core_.Close(actions_);
  EXPECT_TRUE(Push(1, 1));
  Actions();
  core_.RankReplaced(Rank{1}, actions_);
  EXPECT_EQ(Actions(), "stream 0 to 1");
  EXPECT_TRUE(Push(0, 1));
  EXPECT_EQ(Actions(), "");
  EXPECT_TRUE(Push(1, 1));
  EXPECT_EQ(Actions(), "fold pushed 1, complete 1");
}

TEST_F(SumCore, SumsAChunkThatIsAddedWhileAStreamIsOpen) {
  Open(0);
  AddChunk(2, Iteration{1});
  EXPECT_TRUE(Announce(0, 2, 1));
  EXPECT_TRUE(Announce(1, 2, 1));
  core_.Assign(ChunkIndex{2}, actions_);
  EXPECT_EQ(Actions(), "ready 2, assign 2 at 1");
  Sum(2, 0);
  Sum(3, 0);
  EXPECT_EQ(Actions(), "fold 2.0, fold 2.1, complete 2");
  EXPECT_EQ(core_.iteration(ChunkIndex{2}), Iteration{2});
}

TEST_F(SumCore, ARemovedChunksNumberIsUsedAgain) {
  AddChunk(2, Iteration{1});
  EXPECT_TRUE(Announce(0, 2, 1));
  EXPECT_FALSE(core_.IsIdle(ChunkIndex{2}));
  EXPECT_TRUE(Announce(1, 2, 1));
  core_.Assign(ChunkIndex{2}, actions_);
  EXPECT_FALSE(core_.IsIdle(ChunkIndex{2}));
  Sum(0, 0);
  Sum(1, 0);
  Actions();
  EXPECT_TRUE(core_.IsIdle(ChunkIndex{2}));
  core_.RemoveChunks(ChunkIndex{2});
  blocks_.resize(2);
  EXPECT_EQ(Sum(1, 0), SumVerdict::kOld) << "its position is complete";
  EXPECT_FALSE(Announce(0, 2, 2));
  AddChunk(1, Iteration{1});
  EXPECT_EQ(Sum(1, 0), SumVerdict::kOld) << "the position had two blocks";
  EXPECT_EQ(Actions(), "");
  EXPECT_TRUE(Announce(0, 2, 1));
  EXPECT_TRUE(Announce(1, 2, 1));
  core_.Assign(ChunkIndex{2}, actions_);
  Actions();
  EXPECT_EQ(Sum(3, 0), SumVerdict::kWrong);
  EXPECT_EQ(Sum(2, 0), SumVerdict::kFolded);
  EXPECT_EQ(Actions(), "fold 2.0, complete 2");
}

TEST_F(SumCore, KnowsTheGreatestExponentsOfAllRanks) {
  EXPECT_FALSE(AnnounceWith(0, {100})) << "the chunk has two blocks";
  EXPECT_TRUE(AnnounceWith(0, {130, 120}));
  EXPECT_TRUE(AnnounceWith(1, {125, 127}));
  EXPECT_EQ(Exponents(), (std::vector<std::uint8_t>{130, 127}));
  core_.Assign(ChunkIndex{0}, actions_);
  Actions();
  EXPECT_EQ(Sum(0, 0, 5, 125), SumVerdict::kWrong);
  EXPECT_EQ(Sum(1, 0, 5, 130), SumVerdict::kWrong);
  EXPECT_EQ(Actions(), "");
  EXPECT_EQ(Sum(0, 0, 5, 130), SumVerdict::kFolded);
  // Another process may be rank 0 on the next stream, with a smaller gradient.
  core_.Close(actions_);
  core_.Open(LeaseNumber{6}, actions_);
  EXPECT_TRUE(AnnounceWith(0, {110, 111}, 6));
  EXPECT_TRUE(AnnounceWith(1, {125, 80}, 6));
  EXPECT_EQ(Exponents(), (std::vector<std::uint8_t>{125, 111}));
}

TEST_F(SumCore, AChunkWithoutBlocksIsOnlyPushed) {
  AddChunk(0, Iteration{7});
  EXPECT_FALSE(Announce(0, 2));
  EXPECT_TRUE(Push(0, 2));
  EXPECT_TRUE(Push(1, 2));
  EXPECT_EQ(Actions(), "fold pushed 2, complete 2");
}

TEST_F(SumCore, FindsFaultWithImpossibleMessages) {
  EXPECT_FALSE(Announce(2, 0));
  EXPECT_FALSE(Announce(0, 2));
  EXPECT_FALSE(Announce(0, 0, 8)) << "ahead";
  EXPECT_FALSE(Announce(0, 0, 5)) << "older than the last";
  EXPECT_FALSE(Push(2, 0));
  EXPECT_FALSE(Push(0, 2));
  EXPECT_FALSE(Push(0, 0, 8));
  EXPECT_FALSE(Push(0, 0, 5));
  EXPECT_TRUE(Announce(0, 0));
  EXPECT_FALSE(Push(0, 0)) << "announced, and nobody asked for a push";
  EXPECT_EQ(Actions(), "");
}

}  // namespace
}  // namespace phub::aggregation
