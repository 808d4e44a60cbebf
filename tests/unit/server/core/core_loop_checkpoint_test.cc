// The core loop with types other than f32, with two versions, and with checkpoints.
#include <cstring>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

using wire::MessageKind;
using wire::RoundOperation;

class VersionsTest : public CoreLoopTest {
 protected:
  void StartTwoVersions(std::uint32_t ranks) {
    config_.restart = true;
    config_.on_loss = LossPolicy::kWait;
    Start(ranks, 2, Optimizer::kSgd);
  }
  std::vector<ScriptedTransport::Posted> Pull(std::uint32_t rank, Iteration version) {
    wire::MessageHeader header = Gradient(0, 0, 0);
    header.kind = MessageKind::kPull;
    header.iteration = version;
    transport_.Deliver(lanes_[rank], header);
    loop_.RunOnce();
    return Replies();
  }
};

TEST_F(VersionsTest, TheVersionBeforeTheCurrentOneIsKeptAndPulled) {
  StartTwoVersions(1);
  Push(0, 0, 1, 0, 1.0f);
  Push(0, 0, 2, 0, 1.0f);
  EXPECT_EQ(Replies().size(), 2u);
  for (const std::uint64_t version : {2u, 1u}) {
    const auto replies = Pull(0, Iteration{version});
    ASSERT_EQ(replies.size(), 1u);
    EXPECT_EQ(replies[0].header.iteration, Iteration{version});
    EXPECT_EQ(replies[0].payload, Filled(-0.5f * static_cast<float>(version)));
  }
  EXPECT_EQ(Pull(0, Iteration::Max()).at(0).header.iteration, Iteration{2});
  EXPECT_TRUE(Pull(0, Iteration{0}).empty());
  EXPECT_EQ(FaultOf(), FaultCode::kVersionGone);
}

TEST_F(VersionsTest, PullsBeyondTheWindowWaitAndKeepTheirVersion) {
  config_.replies_per_lane_max = 1;
  StartTwoVersions(1);
  for (std::uint64_t iteration : {1u, 2u}) Push(0, 0, iteration, 0, 1.0f);
  loop_.RunOnce();
  loop_.RunOnce();
  transport_.TakePosted();
  transport_.set_report_sent(false);
  EXPECT_EQ(Pull(0, Iteration{2}).size(), 1u);
  EXPECT_TRUE(Pull(0, Iteration{1}).empty());
  transport_.set_report_sent(true);
  for (int i = 0; i < 4; ++i) loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].header.iteration, Iteration{1});
  EXPECT_EQ(replies[0].payload, Filled(-0.5f));
}

// The previous process's push is folded, so the round completes without this process.
TEST_F(VersionsTest, APullThatWaitsIsOfItsVersionThoughTheNextOneIsMadeMeanwhile) {
  config_.replies_per_lane_max = 1;
  StartTwoVersions(2);
  for (const std::uint64_t iteration : {1u, 2u}) {
    for (const std::uint32_t chunk : {0u, 1u}) Push(0, chunk, iteration, chunk, 1.0f);
    if (iteration == 2) break;
    for (const std::uint32_t chunk : {0u, 1u}) Push(1, chunk, iteration, chunk, 1.0f);
  }
  for (int i = 0; i < 4; ++i) loop_.RunOnce();
  ASSERT_EQ(Count(CoreCounter::gradients_folded), 4u);
  transport_.Break(lanes_[0], TransportError::kPeerClosed);
  loop_.RunOnce();
  Attach(0);
  transport_.TakePosted();
  transport_.set_report_sent(false);
  wire::MessageHeader pull = Gradient(0, 1, 0);
  pull.kind = MessageKind::kPull;
  for (const std::uint32_t chunk : {0u, 1u}) {
    pull.chunk = ChunkIndex{chunk};
    transport_.Deliver(lanes_[0], pull);
  }
  loop_.RunOnce();
  ASSERT_EQ(Replies().size(), 1u);
  Push(1, 1, 2, 1, 1.0f);
  transport_.set_report_sent(true);
  for (int i = 0; i < 4; ++i) loop_.RunOnce();
  std::vector<ScriptedTransport::Posted> pulled;
  for (const auto& reply : Replies()) {
    if (reply.connection == lanes_[0]) pulled.push_back(reply);
  }
  ASSERT_EQ(pulled.size(), 1u);
  EXPECT_EQ(pulled[0].header.chunk, ChunkIndex{1});
  EXPECT_EQ(pulled[0].header.iteration, Iteration{1});
  EXPECT_EQ(pulled[0].payload, Filled(-1.0f));
  EXPECT_EQ(shard_->reply_backlog, 0u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(VersionsTest, PullsAreForJobsThatKeepVersions) {
  Start(1, 2);
  EXPECT_TRUE(Pull(0, Iteration::Max()).empty());
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

TEST_F(VersionsTest, ReportsSayWhereEachKeyIsAndUnderWhichRecords) {
  StartTwoVersions(1);
  Push(0, 0, 1, 0, 1.0f);
  Push(0, 1, 1, 0, 1.0f);
  wire::MessageHeader header = Gradient(0, 0, 0);
  header.hyper_version = HyperVersion{2};
  transport_.DeliverHyperParameters(lanes_[0], header, {.learning_rate = 3.0});
  header = Gradient(0, 2, 0);
  header.hyper_version = HyperVersion{2};
  transport_.Deliver(lanes_[0], header, Filled(1.0f));
  loop_.RunOnce();
  VersionReport report;
  report.keys.resize(1);
  Order({.kind = Command::Kind::kReportVersions, .shard = shard_.get(), .versions = &report});
  EXPECT_EQ(Next(Event::Kind::kVersionsReported).versions, &report);
  const VersionReport::Entry& key = report.keys[0];
  EXPECT_EQ(report.key_count, 1u);
  EXPECT_EQ(key.chunk_count, 4u);
  EXPECT_EQ(key.applied_min, Iteration{0});
  EXPECT_EQ(key.applied_max, Iteration{2});
  EXPECT_EQ(key.reductions_min, 0u);
  EXPECT_EQ(key.reductions_max, 2u);
  for (const std::uint32_t chunk : {1u, 2u, 3u}) {
    for (std::uint64_t i = chunk == 1 ? 2 : 1; i <= 2; ++i) Push(0, chunk, i, 0, 1.0f);
  }
  Order({.kind = Command::Kind::kReportVersions, .shard = shard_.get(), .versions = &report});
  EXPECT_EQ(report.keys[0].applied_min, Iteration{2});
  EXPECT_EQ(report.keys[0].hyper_version, HyperVersion{2});
  EXPECT_EQ(report.keys[0].hyper_parameters.learning_rate, 3.0);
  EXPECT_EQ(report.keys[0].previous_hyper_version, HyperVersion{1});
  EXPECT_EQ(report.keys[0].previous_hyper_parameters.learning_rate, 0.5);
  report.first = KeyIndex{1};  // a page after the shard's last key
  Order({.kind = Command::Kind::kReportVersions, .shard = shard_.get(), .versions = &report});
  EXPECT_EQ(report.keys[0].chunk_count, 0u);
}

// bf16 on the wire in both directions, with f32 masters.
class MastersTest : public CoreLoopTest {
 protected:
  void StartMasters() {
    key_.gradient_type = ElementType::kBf16;
    key_.parameter_type = ElementType::kBf16;
    Start(1, 2, Optimizer::kSgd, Reduction::kSum, 1);
  }
  // The scripted transport counts in floats.
  static std::vector<float> Halves(std::uint16_t bits) {
    std::vector<std::uint16_t> halves(kElements, bits);
    std::vector<float> words(kElements / 2);
    std::memcpy(words.data(), halves.data(), kElements * sizeof(std::uint16_t));
    return words;
  }
  void PushHalves(std::uint64_t iteration, std::uint16_t bits) {
    wire::MessageHeader header = Gradient(0, iteration, 0);
    header.type = ElementType::kBf16;
    transport_.Deliver(lanes_[0], header, Halves(bits));
    loop_.RunOnce();
  }
  float Master() {
    float value = 0;
    std::memcpy(&value, batch_->chunks[0].masters, sizeof value);
    return value;
  }
};

TEST_F(MastersTest, MastersKeepWhatRepliesRoundAway) {
  StartMasters();
  wire::MessageHeader header = Gradient(0, 1, 0);
  header.operation = RoundOperation::kAssign;
  transport_.Deliver(lanes_[0], header, Filled(1.0f + 0x1p-20f));
  loop_.RunOnce();
  EXPECT_EQ(Replies().at(0).payload, Halves(0x3f80));
  EXPECT_EQ(Master(), 1.0f + 0x1p-20f);
  PushHalves(2, 0x3f00);  // 0.5; the learning rate is 0.5 too
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].payload, Halves(0x3f40));
  EXPECT_EQ(replies[0].header.type, ElementType::kBf16);
  EXPECT_EQ(Master(), 0.75f + 0x1p-20f);
}

TEST_F(MastersTest, AGradientOfAnotherTypeIsRefused) {
  StartMasters();
  Push(0, 0, 1, 0, 1.0f);
  EXPECT_EQ(FaultOf(), FaultCode::kType);
  EXPECT_EQ(Count(CoreCounter::refused_type), 1u);
}

class SnapshotTest : public CoreLoopTest {
 protected:
  void Take(std::uint64_t target) {
    image_ = MakeCheckpointImage({shard_->chunks(), shard_->chunk_count}, shard_->key_count);
    image_->keys[0].target = target;
    Order({.kind = Command::Kind::kTakeSnapshot, .shard = shard_.get(), .image = image_.get()});
  }
  std::vector<float> Copied(std::uint32_t chunk, const std::byte* memory) {
    EXPECT_TRUE(image_->chunks[chunk].ready.load());
    std::vector<float> values(kElements);
    std::memcpy(values.data(), memory, kElements * sizeof(float));
    return values;
  }
  std::unique_ptr<CheckpointImage> image_;
};

TEST_F(SnapshotTest, EveryChunkIsCopiedAtItsIterationWhileRoundsGoOn) {
  Start(1, 4, Optimizer::kMomentum);
  Push(0, 0, 1, 0, 1.0f);
  Push(0, 1, 1, 0, 2.0f);
  // Chunks 0 and 1 are at 1, chunks 2 and 3 at 0. Expect: all at 1, in either order.
  Take(1);
  Push(0, 0, 2, 0, 8.0f);
  Push(0, 2, 1, 0, 3.0f);
  EXPECT_EQ(Next(Event::Kind::kSnapshotTaken).kind, Event::Kind::kNone) << "chunk 3 is missing";
  Push(0, 3, 1, 0, 4.0f);
  Push(0, 3, 2, 0, 4.0f);
  const Event taken = Next(Event::Kind::kSnapshotTaken);
  EXPECT_EQ(taken.image, image_.get());
  EXPECT_FALSE(image_->missed);
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    const float gradient = static_cast<float>(chunk + 1);
    EXPECT_EQ(Copied(chunk, image_->chunks[chunk].parameters), Filled(-0.5f * gradient));
    EXPECT_EQ(Copied(chunk, image_->chunks[chunk].state[0]), Filled(gradient));
    EXPECT_EQ(image_->chunks[chunk].reductions, 1u);
  }
  EXPECT_EQ(image_->keys[0].hyper_parameters.learning_rate, 0.5);
}

TEST_F(SnapshotTest, OneThatComesTooLateIsMissedAsAWhole) {
  Start(1, 4);
  for (const std::uint64_t iteration : {1u, 2u}) Push(0, 3, iteration, 0, 1.0f);
  Take(1);
  EXPECT_EQ(Next(Event::Kind::kSnapshotTaken).image, image_.get());
  EXPECT_TRUE(image_->missed);
}

TEST_F(SnapshotTest, ADroppedOneIsNotTouchedAgain) {
  Start(1, 4);
  Take(1);
  Order({.kind = Command::Kind::kDropSnapshot, .shard = shard_.get()});
  Push(0, 0, 1, 0, 1.0f);
  EXPECT_FALSE(image_->chunks[0].ready.load());
}

TEST_F(SnapshotTest, WhatWasSavedIsPutInPlaceByARound) {
  Start(1, 4, Optimizer::kMomentum, Reduction::kSum, 1);
  for (const std::uint64_t iteration : {1u, 2u}) Push(0, 0, iteration, 0, 1.0f);
  const std::vector<float> saved = Replies().at(1).payload;
  Take(2);
  ASSERT_EQ(Next(Event::Kind::kSnapshotTaken).image, image_.get());
  Push(0, 0, 3, 0, 1.0f);
  const std::vector<float> after = Replies().at(0).payload;
  // Training takes another path. Then the checkpoint is loaded, and training continues with the
  // same bits.
  Push(0, 0, 4, 0, 9.0f);
  EXPECT_NE(Replies().at(0).payload, after);
  Order({.kind = Command::Kind::kLoadCheckpoint, .shard = shard_.get(), .image = image_.get()});
  wire::MessageHeader load = Gradient(0, 5, 0);
  load.operation = RoundOperation::kLoad;
  transport_.Deliver(lanes_[0], load);
  loop_.RunOnce();
  EXPECT_EQ(Replies().at(0).payload, saved);
  EXPECT_EQ(batch_->chunks[0].reductions, 2u);
  Push(0, 0, 6, 0, 1.0f);
  EXPECT_EQ(Replies().at(0).payload, after);
}

TEST_F(SnapshotTest, ALoadWithoutStateIsRefused) {
  Start(1, 4);
  wire::MessageHeader load = Gradient(0, 1, 0);
  load.operation = RoundOperation::kLoad;
  transport_.Deliver(lanes_[0], load);
  loop_.RunOnce();
  EXPECT_EQ(FaultOf(), FaultCode::kNoCheckpoint);
}

}  // namespace
}  // namespace phub::server
