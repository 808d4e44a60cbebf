// Racks are judged by the silence of the lanes that they share, which core loops measure.
#include "server/control/racks/rack_liveness.h"

#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RackLivenessTest : public RackJobsTest {
 protected:
  RackLivenessTest() { lane_version = wire::kKeepAliveVersion; }
  DurationNs timeout() { return node(0).options.liveness_timeout; }
  static void WithAggregator(ControlOptions& options) {
    options.aggregator_count = 1;
    options.rack_topology =
        std::make_shared<const plan::Topology>(*plan::Generate("switch:2,aggregate"));
  }
  // Racks 0 and 2 share no edge of the job's plan.
  void EnterOverAChain() {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
      Start(rack, [](ControlOptions& options) {
        options.rack_topology = std::make_shared<const plan::Topology>(*plan::Generate("mesh:3"));
      });
    }
    set_options = [](v1::JobOptions& options) { options.set_plan("packing"); };
    EnterAll();
    ASSERT_EQ(LaneOf(0, 2).connection, nullptr);
    ASSERT_NE(LaneOf(1, 2).connection, nullptr);
  }
};

TEST_F(RackLivenessTest, LanesThatAreAliveNeedNoHeartbeats) {
  EnterAll();
  CutOff(2, Cut::kAll);
  Advance(20 * timeout());
  ExpectRunStateEverywhere("standing");
  EXPECT_EQ(node(0).Counter("phub_racks_silent_total"), 0u);
}

TEST_F(RackLivenessTest, ASilentRackIsNamedWithItsLanesEverywhere) {
  EnterAll();
  CutOff(2, Cut::kAll);
  Silence(2);
  Advance(timeout() - 100 * kMillisecond);
  EXPECT_EQ(FaultOf(0), "");
  Advance(timeout() / 2);
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    EXPECT_THAT(
        FaultOf(rank),
        AllOf(HasSubstr("the daemon of rack 2 (node2:7700) has been silent on its lane (tcp "),
              HasSubstr("for 2."), HasSubstr("(liveness_timeout 2.0 s)"), HasSubstr("rack_silent"),
              Not(HasSubstr("heartbeats"))));
  }
  EXPECT_EQ(node(0).Counter("phub_racks_silent_total"), 1u);
}

TEST_F(RackLivenessTest, HeartbeatsDoNotHideSilentLanes) {
  EnterAll();
  Silence(1);
  Advance(timeout() * 3 / 2);
  for (const std::uint32_t rank : {0u, 2u, 4u}) {
    EXPECT_THAT(FaultOf(rank), AllOf(HasSubstr("rack 1 (node1:7700) has been silent on its lane"),
                                     HasSubstr("although its heartbeats arrive")));
  }
  ExpectNothingLeft();
}

// Nothing was observed while control stood still, in all daemons at once.
TEST_F(RackLivenessTest, ControlThatStoodStillAccusesNobody) {
  Enter({0, 2, 4});
  StandStill(10 * timeout());
  Advance(timeout());
  EXPECT_EQ(node(0).Counter("phub_racks_silent_total"), 0u);
}

TEST_F(RackLivenessTest, OlderRacksAreJudgedByHeartbeats) {
  lane_version = wire::kLaneVersionMin;
  EnterAll();
  Silence(2);
  Advance(3 * timeout());
  ExpectRunStateEverywhere("standing");
  CutOff(2, Cut::kAll);
  Advance(timeout() + 200 * kMillisecond);
  EXPECT_THAT(FaultOf(0), HasSubstr("the daemon of rack 2 (node2:7700) has been silent for"));
}

TEST_F(RackLivenessTest, HeartbeatsDecideUntilLanesAreOpen) {
  holds_dials = true;
  const auto call = Join(0);
  Settle();
  CutOff(2, Cut::kAll);
  Advance(timeout() + 200 * kMillisecond);
  EXPECT_THAT(call->message(), HasSubstr("rack 2 (node2:7700) has been silent for"));
}

TEST_F(RackLivenessTest, RacksWithoutACommonEdgeDoNotMissEachOthersHeartbeats) {
  EnterOverAChain();
  SetCut(0, 2, Cut::kAll);
  SetCut(2, 0, Cut::kAll);
  Advance(20 * timeout());
  ExpectRunStateEverywhere("standing");
}

TEST_F(RackLivenessTest, ANeighborReportsASilentRackToRacksWithoutACommonEdge) {
  EnterOverAChain();
  CutOff(2, Cut::kAll);
  Silence(2);
  Advance(timeout() * 3 / 2);
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    EXPECT_THAT(FaultOf(rank), HasSubstr("rack 2 (node2:7700) has been silent on its lane"));
  }
  EXPECT_EQ(node(0).Counter("phub_racks_silent_total"), 0u);
  EXPECT_EQ(node(1).Counter("phub_racks_silent_total"), 1u);
}

// Rack 0 has ended the job in order, and its control stands still before it has sent the last
// message to rack 1.
TEST_F(RackLivenessTest, TheLastMessageOfAJobThatEndedInOrderMayComeLate) {
  EnterAll();
  node(0).network.Keep(RackIndex{1}, v1::PeerMessage::kLeft);
  Leave({0, 1, 2, 3, 4, 5});
  Settle();
  ASSERT_EQ(node(0).network.kept.size(), 1u);
  FakeCore& core = *node(1).cores[0];
  const auto lane = std::ranges::find(core.attached, LaneOwner(RackIndex{0}), &Command::owner);
  ASSERT_NE(lane, core.attached.end());
  core.LoseLane(*lane, transport::TransportError::kPeerClosed);
  CutOff(0, Cut::kAll);
  Advance(5 * timeout());
  EXPECT_EQ(StateAt(1), "standing");
  CutOff(0, Cut::kNone);
  v1::PeerMessage late = node(0).network.kept.front();
  node(0).network.Keep(RackIndex{1}, std::nullopt);
  Say(0, 1, late.incarnation(), late);
  ExpectNothingLeft();
  EXPECT_EQ(node(1).Counter("phub_jobs_failed_total"), 0u);
}

// The plan does not use the aggregator (rack 2), which is down from the beginning.
TEST_F(RackLivenessTest, ARackThatThePlanDoesNotUseMayBeDown) {
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) Start(rack, WithAggregator);
  CutOff(2, Cut::kAll);
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    v1::JoinRequest request = RackNode::JoinOf(rank, 4, "digits");
    request.mutable_options()->set_plan("ring");
    const auto call = NodeOf(rank).Join(request);
    Settle();
    ASSERT_TRUE(call->ok()) << call->message();
    sessions[rank] = call->response.session_id();
    ASSERT_TRUE(NodeOf(rank).Commit(sessions[rank])->ok());
  }
  Advance(2 * RackLiveness::kLongTimeouts * timeout());
  const auto keys = node(0).AddKeys(RackNode::Batch(sessions[0], 0, {RackNode::Key("fc", 4096)}));
  Settle();
  EXPECT_TRUE(keys->ok()) << keys->message();
  // Expect: neither its return nor its restart ends the job, and it never has a part of it.
  CutOff(2, Cut::kNone);
  Settle();
  Start(2, WithAggregator);
  Advance(timeout());
  for (const std::uint32_t rack : {0u, 1u}) EXPECT_EQ(StateAt(rack), "standing") << rack;
  EXPECT_EQ(StateAt(2), "");
  Leave({0, 1, 2, 3});
  ExpectNothingLeft();
  for (const std::uint32_t rack : {0u, 1u}) {
    EXPECT_EQ(node(rack).Counter("phub_jobs_failed_total"), 0u) << rack;
  }
}

}  // namespace
}  // namespace phub::server
