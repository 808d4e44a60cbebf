// Keep-alives of a core loop, and the silence that it measures for control.
#include "server/core/loop/keep_alives.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

class CoreLoopKeepAliveTest : public CoreLoopTest {
 protected:
  CoreLoopKeepAliveTest() : CoreLoopTest(kLivenessTimeout) {}
  void StartKept(std::uint32_t ranks) {
    endpoint_.SetVersion(wire::kKeepAliveVersion);
    Start(ranks, 4);
    RunFor(kTick);  // the first look
    transport_.keep_alives.clear();
  }
  // Runs the loop whenever it asks for it, as its thread does.
  void RunFor(DurationNs duration) {
    for (const TimeNs end = clock_.now + duration; clock_.now < end; loop_.RunOnce())
      clock_.now = std::min(end, std::max(clock_.now + kMillisecond, loop_.NextTimer()));
  }
  DurationNs silence() const { return endpoint_.silence_meter().silence(); }
  // Something arrives from every rank.
  void ReceiveFromAll() {
    for (const auto& [rank, lane] : lanes_) {
      transport_.activities[lane.index] = {.received = ++received_, .read_all = true};
    }
  }

  std::uint64_t received_ = 0;
  static constexpr DurationNs kTick = kLivenessTimeout / 16;
  LoopContext context_{CoreIndex{0}, clock_, transports_};
};

TEST_F(CoreLoopKeepAliveTest, WorkersGetEightKeepAlivesPerTimeout) {
  StartKept(2);
  RunFor(10 * kLivenessTimeout);
  EXPECT_NEAR(static_cast<double>(transport_.keep_alives[lanes_[0].index]), 80, 2);
  EXPECT_NEAR(static_cast<double>(transport_.keep_alives[lanes_[1].index]), 80, 2);
}

TEST_F(CoreLoopKeepAliveTest, OlderWorkersGetNoneAndAreNotMeasured) {
  Start(1, 4);
  RunFor(10 * kLivenessTimeout);
  EXPECT_TRUE(transport_.keep_alives.empty());
  EXPECT_EQ(silence(), 0);
}

TEST_F(CoreLoopKeepAliveTest, MeasuresHowLongAWorkerIsSilent) {
  StartKept(1);
  RunFor(kLivenessTimeout + 2 * kTick);
  EXPECT_GE(silence(), kLivenessTimeout);
  ReceiveFromAll();
  RunFor(2 * kTick);
  EXPECT_LE(silence(), 2 * kTick);
}

TEST_F(CoreLoopKeepAliveTest, APauseOfTheLoopAccusesNobody) {
  StartKept(1);
  const DurationNs before = silence();
  clock_.now += 100 * kLivenessTimeout;
  loop_.RunOnce();
  EXPECT_LE(silence(), before + kLivenessTimeout / 8);
}

TEST_F(CoreLoopKeepAliveTest, ANewLaneOfTheRankStartsAgain) {
  StartKept(1);
  RunFor(2 * kLivenessTimeout);
  ASSERT_GE(silence(), kLivenessTimeout);
  Attach(0);
  EXPECT_EQ(silence(), 0);
}

TEST_F(CoreLoopKeepAliveTest, KeepAlivesFromWorkersChangeNothing) {
  StartKept(1);
  transport_.Deliver(lanes_[0],
                     {.version = wire::kKeepAliveVersion, .kind = wire::MessageKind::kKeepAlive});
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
  Push(0, 0, 1, 0, 1.0F);
  EXPECT_EQ(Replies().size(), 1u);
}

// A run that sums for long must not make the loop look dead: the clock passes a keep-alive's time
// inside of it.
TEST_F(CoreLoopKeepAliveTest, LongWorkSendsKeepAlivesFromInside) {
  StartKept(1);
  KeepAlives keep_alives(context_, kLivenessTimeout);
  context_.shards.push_back(shard_.get());
  clock_.now += kLivenessTimeout;
  keep_alives.Note(1 << 20);
  EXPECT_TRUE(transport_.keep_alives.empty());
  keep_alives.Note(std::uint64_t{1} << 30);
  EXPECT_EQ(transport_.keep_alives[lanes_[0].index], 1u);
  keep_alives.Note(std::uint64_t{1} << 30);  // not due again
  EXPECT_EQ(transport_.keep_alives[lanes_[0].index], 1u);
}

// One round takes longer than a keep-alive's interval: every reading of the clock takes one.
class LongRoundTest : public CoreLoopTest {
 protected:
  LongRoundTest() : CoreLoopTest(kLivenessTimeout) {}
};

TEST_F(LongRoundTest, KeepAlivesAreSentFromInsideOfIt) {
  constexpr std::uint32_t kLargeElements = 1 << 20;
  constexpr std::uint32_t kManyRanks = 16;  // 64 MiB are read, in three parts
  endpoint_.SetVersion(wire::kKeepAliveVersion);
  config_.incarnation = Incarnation{77};
  config_.membership_epoch = MembershipEpoch{1};
  config_.world_size = kManyRanks;
  config_.chunk_bytes = kLargeElements * sizeof(float);
  config_.slots_per_lane = 2;
  shard_ = MakeJobShard(config_);
  key_.chunks.push_back({kLargeElements, 0});
  parameters_[0].resize(kLargeElements * sizeof(float));
  key_.parameters[0] = parameters_[0].data();
  batch_ = MakeKeyBatch(config_, {&key_, 1});
  Order({.kind = Command::Kind::kAddJob, .shard = shard_.get()});
  Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch_.get()});
  for (std::uint32_t rank = 0; rank < kManyRanks; ++rank) Attach(rank);
  const std::vector<float> gradient(kLargeElements, 1.0F);
  for (std::uint32_t rank = 0; rank < kManyRanks; ++rank) {
    if (rank + 1 == kManyRanks) {
      clock_.now += kLivenessTimeout;
      transport_.keep_alives.clear();
      clock_.step = kLivenessTimeout / 8;
    }
    transport_.Deliver(lanes_[rank], Gradient(0, 1, 0), gradient);
    loop_.RunOnce();
  }
  EXPECT_EQ(Replies().size(), kManyRanks);
  EXPECT_GE(transport_.keep_alives[lanes_[0].index], 3u);  // one is sent at the end of each run
}

}  // namespace
}  // namespace phub::server
