// Keep-alives of the engine, and the silence of daemons that it measures.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "client/engine.h"
#include "common/base/clock.h"
#include "tests/unit/client/fake_transport.h"

namespace phub::client {
namespace {

constexpr DurationNs kTimeout = 2 * kSecond;
constexpr DurationNs kTick = kTimeout / 16;

class MovableClock final : public Clock {
 public:
  TimeNs Now() const override { return now; }
  TimeNs now = kSecond;
};

class NotedLanes final : public EngineListener {
 public:
  void OnLaneClosed(const LaneClosed& lane) override { closed.push_back(lane); }
  void OnStopped() override {}
  std::vector<LaneClosed> closed;
};

class EngineKeepAliveTest : public ::testing::Test {
 protected:
  void Attach(std::uint8_t version = wire::kKeepAliveVersion) {
    connections_.push_back(std::make_unique<FakeConnection>());
    connections_.back()->SetVersion(version);
    ASSERT_TRUE(engine_.Submit(
        {.kind = Command::Kind::kAttachLane, .lane = 0, .connection = connections_.back().get()}));
    engine_.RunOnce();
  }
  void RunFor(DurationNs duration, bool hears) {
    for (const TimeNs end = clock_.now + duration; clock_.now < end; engine_.RunOnce()) {
      clock_.now = std::min(end, std::max(clock_.now + kMillisecond, engine_.NextTimer()));
      if (hears) ++transport_.activity.received;
    }
  }

  MovableClock clock_;
  FakeTransport transport_;
  std::array<transport::Transport*, 1> transports_{&transport_};
  NotedLanes lanes_;
  Engine engine_{{.lane_count = 1, .liveness_timeout = kTimeout}, clock_, transports_, lanes_};
  std::vector<std::unique_ptr<FakeConnection>> connections_;
};

TEST_F(EngineKeepAliveTest, SendsEightPerTimeoutToADaemonThatIsAlive) {
  Attach();
  RunFor(10 * kTimeout, /*hears=*/true);
  EXPECT_NEAR(static_cast<double>(transport_.keep_alives), 80, 2);
}

// So if only the direction from the daemon fails, the daemon notices as well.
TEST_F(EngineKeepAliveTest, SendsNoneToADaemonThatIsSilent) {
  Attach();
  RunFor(kTimeout / 4 + 2 * kTick, /*hears=*/false);
  transport_.keep_alives = 0;
  RunFor(10 * kTimeout, /*hears=*/false);
  EXPECT_EQ(transport_.keep_alives, 0u);
  RunFor(kTimeout / 4, /*hears=*/true);
  EXPECT_GT(transport_.keep_alives, 0u);
}

TEST_F(EngineKeepAliveTest, MeasuresSilenceFromTheBeginning) {
  EXPECT_EQ(engine_.Silence(0), Engine::kNotWatched);
  Attach();
  RunFor(kTimeout + 2 * kTick, /*hears=*/false);
  EXPECT_GE(engine_.Silence(0), kTimeout);
  RunFor(2 * kTick, /*hears=*/true);
  EXPECT_EQ(engine_.Silence(0), 0);
}

TEST_F(EngineKeepAliveTest, APauseOfThisProcessAccusesNobody) {
  Attach();
  clock_.now += 100 * kTimeout;
  engine_.RunOnce();
  EXPECT_LE(engine_.Silence(0), kTimeout / 8);
}

TEST_F(EngineKeepAliveTest, OlderDaemonsAreNotWatched) {
  Attach(/*version=*/1);
  RunFor(10 * kTimeout, /*hears=*/false);
  EXPECT_EQ(engine_.Silence(0), Engine::kNotWatched);
  EXPECT_EQ(transport_.keep_alives, 0u);
}

TEST_F(EngineKeepAliveTest, ASilentLaneIsClosedOnRequestAndStartsAgain) {
  Attach();
  RunFor(kTimeout + 2 * kTick, /*hears=*/false);
  ASSERT_TRUE(engine_.Submit({.kind = Command::Kind::kCloseSilentLane, .lane = 0}));
  engine_.RunOnce();
  engine_.RunOnce();
  ASSERT_EQ(lanes_.closed.size(), 1u);
  EXPECT_GE(lanes_.closed[0].silence, kTimeout);
  EXPECT_EQ(engine_.Silence(0), Engine::kNotWatched);
  ASSERT_TRUE(engine_.Submit({.kind = Command::Kind::kCloseSilentLane, .lane = 0}));
  engine_.RunOnce();  // it is closed already
  EXPECT_EQ(lanes_.closed.size(), 1u);
  Attach();
  RunFor(2 * kTick, /*hears=*/false);
  EXPECT_LE(engine_.Silence(0), 3 * kTick);
}

}  // namespace
}  // namespace phub::client
