// Replies of a job that has keys of several priority classes.
#include "common/base/group_keys.h"
#include "server/core/key_removal.h"
#include "server/core/reply/window.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kDataChunks = 6;
constexpr std::uint32_t kTensorChunk = kDataChunks;

// A key of the lowest class and a group's key of another one, with rank 0 as its only member.
class PriorityTest : public CoreLoopTest {
 protected:
  void StartJob(std::uint32_t ranks = 1, std::uint32_t slots = 16) {
    Start(ranks, slots, Optimizer::kNone, Reduction::kSum, kDataChunks);
  }
  void AddGroup(std::uint8_t level) {
    spec_.key = KeyIndex{kGroupKeysFirst};
    spec_.collective = true;
    spec_.level = level;
    spec_.members = &members_;
    spec_.first_chunk = kTensorChunk;
    spec_.chunks.push_back({kElements, 0});
    values_.assign(kElements, 0.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(values_.data());
    spec_.parameters = {bytes, bytes};
    group_ = MakeKeyBatch(config_, {&spec_, 1});
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = group_.get()});
  }
  void RemoveGroup() {
    removal_.group = &members_;
    Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal_});
  }
  void PushData(std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t chunk = first; chunk < end; ++chunk)
      Push(0, chunk, 1, chunk, static_cast<float>(chunk));
  }
  void PushTensor(std::uint64_t iteration) {
    Push(0, kTensorChunk, iteration, kTensorChunk, static_cast<float>(iteration));
  }
  // The chunks of the replies that were posted since the last call.
  std::vector<std::uint32_t> Replied() {
    std::vector<std::uint32_t> chunks;
    for (const auto& reply : Replies()) chunks.push_back(reply.header.chunk.value);
    return chunks;
  }

  const Members members_{std::array{Rank{0}}};
  KeyShardSpec spec_;
  std::vector<float> values_;
  std::unique_ptr<KeyBatch> group_;
  KeyRemoval removal_;
};

using Chunks = std::vector<std::uint32_t>;

TEST_F(PriorityTest, AReplyOfAHigherClassPassesThoseThatWait) {
  StartJob();
  AddGroup(2);
  transport_.set_report_sent(false);
  PushData(0, kDataChunks);
  EXPECT_EQ(Replied(), (Chunks{0, 1}));
  PushTensor(1);
  EXPECT_EQ(Replied(), Chunks{kTensorChunk});
  transport_.set_report_sent(true);
  for (int i = 0; i < 8; ++i) loop_.RunOnce();
  EXPECT_EQ(Replied(), (Chunks{2, 3, 4, 5}));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(PriorityTest, WaitingRepliesOfTheHigherClassAreTheFirst) {
  config_.replies_per_lane_max = 3;
  StartJob();
  AddGroup(1);
  transport_.set_report_sent(false);
  PushData(0, 4);
  PushTensor(1);
  PushTensor(2);
  EXPECT_EQ(Replied(), (Chunks{0, 1, kTensorChunk}));
  transport_.set_report_sent(true);
  for (int i = 0; i < 8; ++i) loop_.RunOnce();
  EXPECT_EQ(Replied(), (Chunks{kTensorChunk, 2, 3}));
}

TEST_F(PriorityTest, TheLowestClassProceedsAllTheSame) {
  StartJob();
  AddGroup(2);
  transport_.set_report_sent(false);
  PushData(0, 4);
  EXPECT_EQ(Replied(), (Chunks{0, 1}));
  for (std::uint64_t iteration = 1; iteration <= 2 * kOvertakesMax; ++iteration)
    PushTensor(iteration);
  loop_.RunOnce();
  Chunks expected(kOvertakesMax, kTensorChunk);
  expected.push_back(2);
  expected.insert(expected.end(), kOvertakesMax, kTensorChunk);
  expected.push_back(3);
  EXPECT_EQ(Replied(), expected);
}

TEST_F(PriorityTest, WithoutAHigherClassTheWindowIsTheirs) {
  StartJob();
  AddGroup(0);
  transport_.set_report_sent(false);
  PushData(0, kDataChunks);
  EXPECT_EQ(Replied(), (Chunks{0, 1, 2, 3, 4, 5}));
}

TEST_F(PriorityTest, TheWindowIsTheirsAgainOnceTheHigherClassIsRemoved) {
  StartJob();
  AddGroup(2);
  RemoveGroup();
  EXPECT_EQ(Next(Event::Kind::kKeysRemoved).removal, &removal_);
  transport_.set_report_sent(false);
  PushData(0, kDataChunks);
  EXPECT_EQ(Replied(), (Chunks{0, 1, 2, 3, 4, 5}));
}

// A worker sends no more of a lower class than two of eight slots hold, so the daemon must fold
// them, as it does with a lane whose slots are all in use.
TEST_F(PriorityTest, ALaneIsFullForLowerClassesBeforeItsSlotsAreAllUsed) {
  StartJob(2, 8);
  AddGroup(2);
  Push(0, 0, 1, 0, 1.0f);
  EXPECT_TRUE(Posted(wire::MessageKind::kCredit).empty());
  Push(0, 1, 1, 1, 1.0f);
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 2u);
  EXPECT_EQ(shard_->lanes[0].slots_used, 0u);
  // Expect: rank 1 waits for rank 0, whose gradient then relieves its lane.
  Push(1, 2, 1, 0, 2.0f);
  Push(1, 3, 1, 1, 2.0f);
  EXPECT_EQ(shard_->lanes_full, 1u);
  EXPECT_TRUE(Posted(wire::MessageKind::kCredit).empty());
  Push(0, 2, 1, 0, 1.0f);
  EXPECT_EQ(Replied(), (Chunks{2, 2}));
  EXPECT_EQ(shard_->lanes_full, 0u);
}

TEST_F(PriorityTest, LanesThatAHigherClassMakesFullAreRelieved) {
  StartJob(2, 8);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) Push(0, chunk, 1, chunk, 1.0f);
  EXPECT_EQ(shard_->lanes_full, 0u);
  EXPECT_TRUE(Posted(wire::MessageKind::kCredit).empty());
  AddGroup(2);
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 3u);
  EXPECT_EQ(shard_->lanes_full, 0u);
}

TEST_F(PriorityTest, TheKernelHoldsLittleWhileThereAreTwoClasses) {
  StartJob();
  EXPECT_EQ(endpoint_.unsent_max, 0u);
  AddGroup(2);
  EXPECT_EQ(endpoint_.unsent_max, 128u * 1024);
  endpoint_.unsent_max = 0;
  Attach(0);  // a new lane
  EXPECT_EQ(endpoint_.unsent_max, 128u * 1024);
  RemoveGroup();
  EXPECT_EQ(endpoint_.unsent_max, 0u);
}

TEST_F(PriorityTest, TheKernelsBuffersAreNotLimitedForOneHighClass) {
  key_.level = 2;
  StartJob();
  EXPECT_EQ(endpoint_.unsent_max, 0u);
}

}  // namespace
}  // namespace phub::server
