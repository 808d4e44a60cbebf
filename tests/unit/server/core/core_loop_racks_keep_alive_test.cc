// Keep-alives between the core loops of racks. This loop is rack 1 of three.
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

constexpr DurationNs kTick = kLivenessTimeout / 16;

class CoreLoopRacksKeepAliveTest : public CoreLoopRacks {
 protected:
  CoreLoopRacksKeepAliveTest() : CoreLoopRacks(kLivenessTimeout) {}
  void StartKept(std::uint8_t version = wire::kKeepAliveVersion) {
    peer_version_ = version;
    StartRack(1);
    for (const auto& [rack, id] : peers_) Receive(rack);
    RunFor(kTick);  // the first look
    transport_.keep_alives.clear();
  }
  // Runs the loop whenever it asks for it. Something arrives all the time from `speaking`.
  void RunFor(DurationNs duration, const std::vector<std::uint32_t>& speaking = {}) {
    for (const TimeNs end = clock_.now + duration; clock_.now < end; loop_.RunOnce()) {
      clock_.now = std::min(end, std::max(clock_.now + kMillisecond, loop_.NextTimer()));
      for (const std::uint32_t rack : speaking) Receive(rack);
    }
  }
  void Receive(std::uint32_t rack) {
    transport_.activities[peers_[rack].index] = {.received = ++received_, .read_all = true};
  }
  DurationNs Silence(std::uint32_t rack) { return peer_endpoints_[rack].silence_meter().silence(); }
  double SentTo(std::uint32_t rack) {
    return static_cast<double>(transport_.keep_alives[peers_[rack].index]);
  }

  std::uint64_t received_ = 0;
};

TEST_F(CoreLoopRacksKeepAliveTest, RacksThatSpeakGetEightPerTimeout) {
  StartKept();
  RunFor(10 * kLivenessTimeout, {0, 2});
  EXPECT_NEAR(SentTo(0), 80, 2);
  EXPECT_NEAR(SentTo(2), 80, 2);
  EXPECT_LE(Silence(0), kTick);
}

TEST_F(CoreLoopRacksKeepAliveTest, SilenceOfEachRackIsMeasured) {
  StartKept();
  RunFor(kLivenessTimeout + 2 * kTick, {2});
  EXPECT_GE(Silence(0), kLivenessTimeout);
  EXPECT_LE(Silence(2), kTick);
  RunFor(2 * kTick, {0, 2});
  EXPECT_LE(Silence(0), 2 * kTick);
}

// If no end sent in spite of silence, a short outage in both directions would last forever. If both
// did, a rack would not notice that nothing reaches the other one.
TEST_F(CoreLoopRacksKeepAliveTest, SilenceEndsKeepAlivesToTheLowerRackOnly) {
  StartKept();
  RunFor(10 * kLivenessTimeout);
  EXPECT_LE(SentTo(0), 3);
  EXPECT_NEAR(SentTo(2), 80, 2);
  transport_.keep_alives.clear();
  RunFor(kLivenessTimeout, {0});
  EXPECT_NEAR(SentTo(0), 8, 2);
}

TEST_F(CoreLoopRacksKeepAliveTest, OlderRacksGetNoneAndAreNotMeasured) {
  StartKept(wire::kLaneVersionMin);
  RunFor(10 * kLivenessTimeout);
  EXPECT_TRUE(transport_.keep_alives.empty());
  EXPECT_EQ(Silence(0), 0);
}

TEST_F(CoreLoopRacksKeepAliveTest, ALaneThatWasLostIsNotMeasured) {
  StartKept();
  transport_.Break(peers_[2], TransportError::kReset);
  RunFor(2 * kLivenessTimeout, {0});
  EXPECT_EQ(SentTo(2), 0);
  EXPECT_LE(Silence(2), kTick);
}

TEST_F(CoreLoopRacksKeepAliveTest, AKeepAliveIsNoFault) {
  StartKept();
  transport_.Deliver(peers_[2],
                     {.version = wire::kKeepAliveVersion, .kind = wire::MessageKind::kKeepAlive});
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

}  // namespace
}  // namespace phub::server
