#include "common/aggregation/worker_stream.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace phub::aggregation {
namespace {

// Two positions of two blocks. Chunk 0 has two blocks, chunk 1 has one.
class SumWorker : public ::testing::Test {
 protected:
  SumWorker() {
    worker_.AddChunk(2);
    worker_.AddChunk(1);
    worker_.StreamIs(LeaseNumber{5}, actions_);
  }

  // The actions since the last call, as text: "announce 0", "payload 0 at 3.1".
  std::string Actions() {
    std::string text;
    for (const WorkerAction& action : actions_) {
      if (!text.empty()) text += ", ";
      const std::string chunk = std::to_string(action.chunk.value);
      const std::string at =
          " at " + std::to_string(action.position.value) + "." + std::to_string(action.block);
      switch (action.kind) {
        case WorkerAction::Kind::kAnnounce: text += "announce " + chunk; break;
        case WorkerAction::Kind::kPushTcp: text += "push " + chunk; break;
        case WorkerAction::Kind::kSendPayload: text += "payload " + chunk + at; break;
      }
    }
    actions_.clear();
    return text;
  }
  void Push(std::uint32_t chunk, std::uint64_t iteration) {
    worker_.Push(ChunkIndex{chunk}, Iteration{iteration}, actions_);
  }
  bool Assign(std::uint64_t position, std::uint32_t chunk, std::uint64_t iteration,
              std::uint32_t lease = 5) {
    return worker_.Assign(LeaseNumber{lease}, Position{position}, ChunkIndex{chunk},
                          Iteration{iteration}, actions_);
  }
  // The payload that MISSING makes it send.
  std::string Missing(std::uint16_t slot, std::uint32_t phase, std::uint32_t lease = 5) {
    phub_packet packet{};
    packet.kind = PHUB_PACKET_MISSING;
    packet.lease = lease;
    packet.slot = slot;
    packet.phase = phase;
    worker_.Missing(packet, actions_);
    return Actions();
  }

  WorkerActions actions_;
  WorkerStream worker_{{.positions = 2, .blocks = 2}};
};

TEST_F(SumWorker, AnnouncesAChunkThatIsAddedWhileAStreamIsOpen) {
  EXPECT_FALSE(Assign(0, 2, 1)) << "there is no such chunk yet";
  worker_.AddChunk(2);
  Push(2, 1);
  EXPECT_TRUE(Assign(0, 2, 1));
  EXPECT_EQ(Actions(), "announce 2, payload 2 at 0.0, payload 2 at 0.1");
}

TEST_F(SumWorker, ARemovedChunksNumberIsUsedAgain) {
  worker_.AddChunk(2);
  Push(2, 9);
  EXPECT_TRUE(Assign(0, 2, 9));
  EXPECT_TRUE(worker_.Parameters(ChunkIndex{2}, Iteration{9}));
  worker_.RemoveChunks(ChunkIndex{2});
  Actions();
  EXPECT_EQ(Missing(0, 0), "");
  worker_.AddChunk(1);
  Push(2, 1);
  EXPECT_TRUE(Assign(1, 2, 1)) << "the chunk before had later iterations";
  EXPECT_EQ(Actions(), "announce 2, payload 2 at 1.0");
}

TEST_F(SumWorker, PushesOverTcpWhatIsNotSummedInTheNetwork) {
  worker_.AddChunk(0);
  Push(2, 1);
  EXPECT_EQ(Actions(), "push 2") << "the chunk has no blocks";
  worker_.PushOverTcp(ChunkIndex{0}, Iteration{1}, actions_);
  EXPECT_EQ(Actions(), "push 0") << "the round is not a sum";
  EXPECT_FALSE(Assign(0, 0, 1));
  worker_.LaneReopened(actions_);
  EXPECT_EQ(Actions(), "push 0, push 2");
  EXPECT_TRUE(worker_.Parameters(ChunkIndex{0}, Iteration{1}));
  Push(0, 2);
  EXPECT_EQ(Actions(), "announce 0");
}

TEST_F(SumWorker, SendsEveryBlockOnceAssigned) {
  Push(0, 0);
  EXPECT_EQ(Actions(), "announce 0");
  EXPECT_TRUE(Assign(0, 0, 0));
  EXPECT_EQ(Actions(), "payload 0 at 0.0, payload 0 at 0.1");
  Push(1, 0);
  EXPECT_TRUE(Assign(1, 1, 0));
  EXPECT_EQ(Actions(), "announce 1, payload 1 at 1.0");
}

TEST_F(SumWorker, SendsABlockAgainUntilTheParametersAreThere) {
  Push(0, 0);
  ASSERT_TRUE(Assign(2, 0, 0));  // place 0, phase 1
  Actions();
  EXPECT_EQ(Missing(1, 1), "payload 0 at 2.1");
  EXPECT_EQ(Missing(1, 1), "payload 0 at 2.1");
  EXPECT_TRUE(worker_.Parameters(ChunkIndex{0}, Iteration{0}));
  EXPECT_EQ(Missing(1, 1), "");
}

TEST_F(SumWorker, IgnoresWhatIsNotAboutAnOpenPosition) {
  Push(1, 0);
  ASSERT_TRUE(Assign(3, 1, 0));  // place 1, slots 2 and 3, phase 1
  Actions();
  EXPECT_EQ(Missing(2, 0), "") << "an older phase";
  EXPECT_EQ(Missing(2, 2), "") << "a newer one";
  EXPECT_EQ(Missing(2, 1, 4), "") << "an older lease";
  EXPECT_EQ(Missing(0, 1), "") << "a place that is not open";
  EXPECT_EQ(Missing(3, 1), "") << "a block that the chunk does not have";
  EXPECT_EQ(Missing(4, 1), "") << "a slot that the stream does not have";
  EXPECT_EQ(Missing(2, 1), "payload 1 at 3.0");
}

TEST_F(SumWorker, TheNextPositionOfAPlaceEndsTheOneBefore) {
  Push(0, 0);
  Push(1, 0);
  ASSERT_TRUE(Assign(0, 0, 0));
  ASSERT_TRUE(Assign(2, 1, 0));
  Actions();
  EXPECT_EQ(Missing(0, 0), "");
  EXPECT_EQ(Missing(0, 1), "payload 1 at 2.0");
  worker_.StreamIs(kNoLease, actions_);
  EXPECT_EQ(Actions(), "push 0, push 1") << "chunk 0 is summed, but no datagrams will come";
  EXPECT_TRUE(worker_.Parameters(ChunkIndex{1}, Iteration{0}));
  EXPECT_TRUE(worker_.Parameters(ChunkIndex{0}, Iteration{0}));
  EXPECT_FALSE(worker_.Parameters(ChunkIndex{0}, Iteration{0})) << "it has them already";
  Push(0, 1);
  EXPECT_FALSE(worker_.Parameters(ChunkIndex{0}, Iteration{0})) << "of the iteration before";
}

// It has asked for the parameters, because no datagram has arrived.
TEST_F(SumWorker, AChunkWithAPositionIsPushedIfTheCoreLoopAsksForIt) {
  Push(0, 0);
  EXPECT_FALSE(worker_.HasPosition(ChunkIndex{0}));
  EXPECT_TRUE(worker_.AwaitsDatagrams(ChunkIndex{0}));
  ASSERT_TRUE(Assign(0, 0, 0));
  EXPECT_TRUE(worker_.HasPosition(ChunkIndex{0}));
  Actions();
  ASSERT_TRUE(worker_.UseTcp(ChunkIndex{0}, Iteration{0}, actions_));
  EXPECT_EQ(Actions(), "push 0");
  EXPECT_FALSE(worker_.AwaitsDatagrams(ChunkIndex{0}));
  EXPECT_EQ(Missing(0, 0), "");
  ASSERT_TRUE(worker_.UseTcp(ChunkIndex{0}, Iteration{0}, actions_));
  EXPECT_EQ(Actions(), "") << "it was pushed";
}

TEST_F(SumWorker, ANewStreamStartsWithPositionZeroAgain) {
  Push(0, 0);
  ASSERT_TRUE(Assign(0, 0, 0));
  worker_.StreamIs(kNoLease, actions_);
  Actions();
  EXPECT_EQ(Missing(0, 0), "");
  ASSERT_TRUE(worker_.Parameters(ChunkIndex{0}, Iteration{0}));
  worker_.StreamIs(LeaseNumber{6}, actions_);
  Push(0, 1);
  Actions();
  EXPECT_TRUE(Assign(0, 0, 1, 6));
  EXPECT_EQ(Actions(), "payload 0 at 0.0, payload 0 at 0.1");
}

TEST_F(SumWorker, PushesOverTcpWhatTheStreamHasNotSummed) {
  Push(0, 0);
  Push(1, 0);
  ASSERT_TRUE(Assign(0, 0, 0));
  Actions();
  worker_.StreamIs(kNoLease, actions_);
  EXPECT_EQ(Actions(), "push 0, push 1");
  ASSERT_TRUE(worker_.Parameters(ChunkIndex{0}, Iteration{0}));
  Push(0, 1);
  EXPECT_EQ(Actions(), "push 0");
  ASSERT_TRUE(worker_.Parameters(ChunkIndex{1}, Iteration{0}));
  worker_.StreamIs(LeaseNumber{6}, actions_);
  Push(1, 1);
  EXPECT_EQ(Actions(), "announce 1");
  EXPECT_TRUE(worker_.UseTcp(ChunkIndex{1}, Iteration{1}, actions_));
  EXPECT_EQ(Actions(), "push 1");
  EXPECT_TRUE(worker_.UseTcp(ChunkIndex{1}, Iteration{1}, actions_));
  EXPECT_EQ(Actions(), "") << "pushed already";
}

TEST_F(SumWorker, RepeatsOnANewLaneWhatIsOutstanding) {
  Push(0, 0);
  Push(1, 0);
  ASSERT_TRUE(Assign(0, 0, 0));
  Actions();
  worker_.LaneReopened(actions_);
  EXPECT_EQ(Actions(), "announce 0, announce 1");
  EXPECT_TRUE(Assign(0, 0, 0)) << "assigned again";
  EXPECT_EQ(Actions(), "");
  ASSERT_TRUE(worker_.Parameters(ChunkIndex{0}, Iteration{0}));
  EXPECT_TRUE(Assign(0, 0, 0)) << "sent before the position was complete";
  EXPECT_EQ(Actions(), "");
  EXPECT_EQ(Missing(0, 0), "");
}

TEST_F(SumWorker, RejectsImpossibleMessages) {
  Push(0, 3);
  Actions();
  EXPECT_FALSE(Assign(0, 0, 4)) << "another iteration";
  EXPECT_FALSE(Assign(0, 0, 3, 4)) << "another lease";
  EXPECT_FALSE(Assign(0, 1, 3)) << "not pushed";
  EXPECT_FALSE(Assign(0, 2, 3)) << "no such chunk";
  EXPECT_FALSE(worker_.UseTcp(ChunkIndex{2}, Iteration{0}, actions_));
  EXPECT_FALSE(worker_.Parameters(ChunkIndex{2}, Iteration{0}));
  EXPECT_EQ(Actions(), "");
  EXPECT_TRUE(Assign(0, 0, 3));
  Push(1, 3);
  EXPECT_FALSE(Assign(0, 1, 3)) << "the position has another chunk";
}

}  // namespace
}  // namespace phub::aggregation
