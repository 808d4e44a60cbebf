// Ranks are judged by the silence of their lanes, which core loops measure.
#include <map>

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LaneLivenessTest : public ControlTest {
 protected:
  void EnterWithLanes(std::uint32_t ranks, std::uint8_t version = wire::kKeepAliveVersion,
                      bool wait = false) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      v1::JoinRequest request = JoinOf(rank, ranks);
      request.set_keeps_lanes(version >= wire::kKeepAliveVersion);
      if (wait) {
        request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
        request.mutable_options()->set_wait_timeout_ns(60 * kSecond);
      }
      sessions.push_back(EnterAs(request));
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) OpenKeptLanes(rank, version);
  }
  void OpenKeptLanes(std::uint32_t rank, std::uint8_t version) {
    const auto grants = OpenLanesOf(sessions[rank]);
    ASSERT_TRUE(grants->ok()) << grants->message();
    for (std::uint32_t core = 0; core < cores.size(); ++core) {
      const wire::LaneHello hello = HelloOf(grants->response, rank, core);
      ASSERT_EQ(control().lanes().AdmitLane(hello), wire::LaneRefusal::kNone);
      auto connection = std::make_unique<FakeConnection>(connections_live);
      connection->SetVersion(version);
      connection->silence_meter().Begin({.received = 0, .read_all = true});
      lanes[{rank, core}] = {connection.get()};
      control().lanes().AttachLane(hello, std::move(connection), 0, "tcp", "10.0.0.5:40112");
    }
    Settle();
  }
  // Core loops measure for that long; heartbeats come from `beating`.
  void Pass(DurationNs duration, const std::vector<std::uint32_t>& beating = {}) {
    Measure(duration, [&](DurationNs step) {
      for (const std::uint32_t rank : beating) Heartbeat(sessions[rank]);
      Advance(step);
    });
  }
  // The same while control stands still.
  void PassWithoutControl(DurationNs duration) {
    Measure(duration, [&](DurationNs step) { clock.now += step; });
  }
  template <typename Step>
  void Measure(DurationNs duration, const Step& step) {
    constexpr DurationNs kStep = 100 * kMillisecond;
    for (DurationNs passed = 0; passed < duration; passed += kStep) {
      for (auto& [place, lane] : lanes) {
        if (!IsAttached(place.second, lane.connection)) continue;  // control has freed it
        if (!lane.silent) ++lane.received;
        lane.connection->silence_meter().Look({.received = lane.received, .read_all = true}, kStep);
      }
      step(kStep);
    }
  }

  bool IsAttached(std::uint32_t core, const transport::Connection* connection) const {
    return std::any_of(cores[core]->attached.begin(), cores[core]->attached.end(),
                       [&](const Command& lane) { return lane.connection == connection; });
  }

  struct Kept {
    FakeConnection* connection = nullptr;
    bool silent = false;
    std::uint64_t received = 0;
  };
  std::vector<std::string> sessions;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Kept> lanes;  // by rank and core
};

TEST_F(LaneLivenessTest, LanesThatAreAliveNeedNoHeartbeats) {
  EnterWithLanes(2);
  Pass(20 * options.liveness_timeout);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
}

TEST_F(LaneLivenessTest, ASilentRankIsNamedWithItsLanes) {
  EnterWithLanes(2);
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = true;
  Pass(options.liveness_timeout - 100 * kMillisecond);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  Pass(options.liveness_timeout / 4);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "worker_silent");
  EXPECT_THAT(FaultAt(sessions[0])->message(),
              HasSubstr("rank 1 (node1, pid 4701) has been silent on all its 2 lanes (tcp "
                        "10.0.0.5:40112, ...) for 2.0 s (liveness_timeout 2.0 s)"));
  EXPECT_THAT(FaultAt(sessions[0])->message(), Not(HasSubstr("heartbeats")));
  EXPECT_EQ(FaultAt(sessions[0])->host(), "node1");
}

TEST_F(LaneLivenessTest, HeartbeatsDoNotHideSilentLanes) {
  EnterWithLanes(2);
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = true;
  Pass(options.liveness_timeout * 5 / 4, {0, 1});
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(), HasSubstr("although its heartbeats arrive"));
}

TEST_F(LaneLivenessTest, OneSilentLaneCountsLikeALostOne) {
  EnterWithLanes(2);
  lanes[{1, 1}].silent = true;
  Pass(options.liveness_timeout * 5 / 4);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "lane_lost");
  EXPECT_THAT(FaultAt(sessions[0])->message(),
              HasSubstr("rank 1 (node1, pid 4701) has been silent on its lane to core 1 (tcp "
                        "10.0.0.5:40112) for 2.0 s"));
  EXPECT_EQ(Counter("phub_lanes_silent_total"), 1u);
}

TEST_F(LaneLivenessTest, CallsOfARankThatOpensItsLanesMayBeLate) {
  v1::JoinRequest request = JoinOf(1, 2);
  request.set_keeps_lanes(true);
  const std::string waits = Enter(0, 2);
  sessions = {waits, EnterAs(request)};
  const auto beat_for = [&](DurationNs duration) {
    for (DurationNs passed = 0; passed < duration; passed += options.liveness_timeout / 4) {
      Heartbeat(waits);
      Advance(options.liveness_timeout / 4);
    }
  };
  beat_for(5 * options.liveness_timeout - options.liveness_timeout / 4);
  EXPECT_EQ(FaultAt(waits), nullptr);
  Heartbeat(sessions[1]);
  beat_for(5 * options.liveness_timeout + options.diagnosis_timeout);
  ASSERT_NE(FaultAt(waits), nullptr);
  EXPECT_EQ(FaultAt(waits)->code(), "worker_silent");
  EXPECT_THAT(FaultAt(waits)->message(),
              HasSubstr("sent no heartbeat for 10.0 s (liveness_timeout 2.0 s; 10.0 s until its "
                        "lanes are open)"));
}

TEST_F(LaneLivenessTest, LanesOnceOpenAreHeldToTheUsualTimeout) {
  v1::JoinRequest request = JoinOf(1, 2);
  request.set_keeps_lanes(true);
  sessions = {Enter(0, 2), EnterAs(request)};
  OpenKeptLanes(1, wire::kKeepAliveVersion);
  Pass(kSecond, {0});
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = true;
  Pass(options.liveness_timeout * 5 / 4, {0});
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_EQ(FaultAt(sessions[0])->code(), "worker_silent");
}

TEST_F(LaneLivenessTest, ControlThatStoodStillAccusesNobody) {
  EnterWithLanes(2);
  Pass(kSecond);
  PassWithoutControl(10 * options.liveness_timeout);
  Pass(options.liveness_timeout);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
}

TEST_F(LaneLivenessTest, AVerdictThatComesLateIsStillRight) {
  EnterWithLanes(3);
  Pass(kSecond);
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = true;
  lanes[{2, 0}].silent = lanes[{2, 1}].silent = true;
  PassWithoutControl(5 * options.liveness_timeout);
  lanes[{2, 0}].silent = lanes[{2, 1}].silent = false;  // it was only slow
  PassWithoutControl(options.liveness_timeout / 4);
  Pass(options.liveness_timeout / 4);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(), HasSubstr("rank 1 (node1"));
}

TEST_F(LaneLivenessTest, OlderWorkersAreJudgedByHeartbeats) {
  EnterWithLanes(2, /*version=*/1);
  Pass(2 * options.liveness_timeout, {0, 1});
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
  Pass(options.liveness_timeout + kSecond, {0});
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(), HasSubstr("sent no heartbeat for"));
}

TEST_F(LaneLivenessTest, HeartbeatsDecideUntilAllLanesAreOpen) {
  EnterWithLanes(1);
  lanes.clear();
  cores[0]->CloseLane(cores[0]->attached[0], transport::TransportError::kReset);
  Settle();
  Pass(options.liveness_timeout + kSecond);
  ASSERT_NE(FaultAt(sessions[0]), nullptr);
  EXPECT_THAT(FaultAt(sessions[0])->message(), HasSubstr("sent no heartbeat for"));
}

TEST_F(LaneLivenessTest, ARankThatLeftIsNotJudged) {
  EnterWithLanes(2);
  Leave(sessions[1]);
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = true;
  Pass(3 * options.liveness_timeout);
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
}

TEST_F(LaneLivenessTest, UnderPolicyWaitASilentRankIsLostUntilItIsHeardAgain) {
  EnterWithLanes(2, wire::kKeepAliveVersion, /*wait=*/true);
  const auto state = [&] {
    v1::GetJobRequest request;
    request.set_job("digits");
    return GetJob(request)->response.workers(1).state();
  };
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = true;
  Pass(options.liveness_timeout * 5 / 4, {0, 1});
  EXPECT_EQ(state(), "lost");
  Pass(options.liveness_timeout, {0, 1});  // heartbeats alone do not bring it back
  EXPECT_EQ(state(), "lost");
  lanes[{1, 0}].silent = lanes[{1, 1}].silent = false;
  Pass(kSecond);
  EXPECT_EQ(state(), "live");
  EXPECT_EQ(FaultAt(sessions[0]), nullptr);
}

}  // namespace
}  // namespace phub::server
