#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using wire::LaneRefusal;

class LanesTest : public ControlTest {};

TEST_F(LanesTest, ANonceOpensOneLaneOnce) {
  const std::string session = Enter(0, 1);
  const auto grants = OpenLanesOf(session);
  ASSERT_TRUE(grants->ok());
  EXPECT_EQ(grants->response.valid_for_ns(), 30 * kSecond);
  ASSERT_EQ(grants->response.grants_size(), 2);
  EXPECT_NE(grants->response.grants(0).nonce(), grants->response.grants(1).nonce());
  const wire::LaneHello hello = HelloOf(grants->response, 0, 1);
  EXPECT_EQ(control().lanes().AdmitLane(hello), LaneRefusal::kNone);
  // Receive the same hello again. Expect: the nonce is used up.
  EXPECT_EQ(control().lanes().AdmitLane(hello), LaneRefusal::kNonce);
  Attach(hello);
  Settle();
  const auto commands = cores[1]->Executed(Command::Kind::kAttachLane);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].rank, Rank{0});
  EXPECT_NE(commands[0].connection, nullptr);
  EXPECT_EQ(Counter("phub_lanes_admitted_total"), 1u);
  EXPECT_EQ(Counter("phub_lanes_refused_nonce_total"), 1u);
}

TEST_F(LanesTest, ANonceIsGoodForItsRankCoreRunAndEpochOnly) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto grants = OpenLanesOf(sessions[0]);
  OpenLanesOf(sessions[1]);
  const wire::LaneHello good = HelloOf(grants->response, 0, 0);
  const auto refused = [&](const std::function<void(wire::LaneHello&)>& spoil) {
    wire::LaneHello hello = good;
    spoil(hello);
    return control().lanes().AdmitLane(hello);
  };
  EXPECT_EQ(refused([](auto& hello) { hello.rank = Rank{1}; }), LaneRefusal::kNonce);
  EXPECT_EQ(refused([](auto& hello) { hello.rank = Rank{2}; }), LaneRefusal::kNonce);
  EXPECT_EQ(refused([](auto& hello) { hello.rank = Rank::Max(); }), LaneRefusal::kNonce);
  EXPECT_EQ(refused([](auto& hello) { hello.core = CoreIndex{1}; }), LaneRefusal::kNonce);
  EXPECT_EQ(refused([](auto& hello) { hello.core = CoreIndex::Max(); }), LaneRefusal::kNonce);
  EXPECT_EQ(refused([](auto& hello) { hello.nonce[15] ^= std::byte{1}; }), LaneRefusal::kNonce);
  EXPECT_EQ(refused([](auto& hello) { ++hello.incarnation.value; }), LaneRefusal::kJob);
  EXPECT_EQ(refused([](auto& hello) { ++hello.membership_epoch.value; }), LaneRefusal::kJob);
  // Expect: none of these used up the nonce.
  EXPECT_EQ(control().lanes().AdmitLane(good), LaneRefusal::kNone);
}

TEST_F(LanesTest, AllZeroNoncesNeverWork) {
  Enter(0, 1);
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf({}, 0, 0)), LaneRefusal::kNonce);
}

TEST_F(LanesTest, NoncesExpire) {
  const std::string session = Enter(0, 1);
  const auto grants = OpenLanesOf(session);
  for (int second = 0; second < 30; ++second) {
    Heartbeat(session);
    Advance(kSecond);
  }
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(grants->response, 0, 0)), LaneRefusal::kNonce);
}

TEST_F(LanesTest, ANewerNonceReplacesTheOlder) {
  const std::string session = Enter(0, 1);
  const auto old = OpenLanesOf(session);
  const auto fresh = OpenLanesOf(session);
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(old->response, 0, 0)), LaneRefusal::kNonce);
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(fresh->response, 0, 0)), LaneRefusal::kNone);
}

TEST_F(LanesTest, ALanesPlaceIsBusyUntilTheCoreReportsItClosed) {
  const std::vector<std::string> sessions = EnterAll(2);
  OpenAllLanes(sessions[0], 0);
  EXPECT_EQ(connections_live, 2);
  const auto grants = OpenLanesOf(sessions[0]);
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(grants->response, 0, 0)), LaneRefusal::kBusy);
  cores[0]->CloseLane(cores[0]->attached[0], transport::TransportError::kLocalClosed);
  Settle();
  EXPECT_EQ(connections_live, 1);
  const auto again = OpenLanesOf(sessions[0]);
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(again->response, 0, 0)), LaneRefusal::kNone);
}

TEST_F(LanesTest, UnderPolicyWaitANewLaneReplacesTheOldOne) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
  const std::string session = EnterAs(request);
  OpenAllLanes(session, 0);
  const Command old = cores[0]->attached[0];
  OpenAllLanes(session, 0);
  // Expect: the same process receives into the same memory.
  ASSERT_NE(old.staging, nullptr);
  EXPECT_EQ(cores[0]->attached[1].staging, old.staging);
  // Expect: both stay until the core loop has closed the old one.
  EXPECT_EQ(connections_live, 4);
  cores[0]->CloseLane(old, transport::TransportError::kReset);
  Settle();
  EXPECT_EQ(connections_live, 3);
  Leave(session);
  Settle();
  EXPECT_EQ(connections_live, 0);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(LanesTest, AConnectionThatComesAfterItsJobFailedIsDropped) {
  const std::string session = Enter(0, 2);
  const auto grants = OpenLanesOf(session);
  const wire::LaneHello hello = HelloOf(grants->response, 0, 0);
  ASSERT_EQ(control().lanes().AdmitLane(hello), LaneRefusal::kNone);
  Advance(options.liveness_timeout);
  ASSERT_NE(FaultAt(session), nullptr);
  Attach(hello);
  EXPECT_EQ(connections_live, 0);
  EXPECT_EQ(Counter("phub_lanes_dropped_total"), 1u);
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(grants->response, 0, 1)), LaneRefusal::kJob);
}

// Opening a lane over RDMA takes a while. The worker, or its next process, may have given up by
// then.
TEST_F(LanesTest, AConnectionThatComesAfterAnotherWasAskedForIsDropped) {
  const std::string session = Enter(0, 1);
  const wire::LaneHello slow = HelloOf(OpenLanesOf(session)->response, 0, 0);
  ASSERT_EQ(control().lanes().AdmitLane(slow), LaneRefusal::kNone);
  const wire::LaneHello next = HelloOf(OpenLanesOf(session)->response, 0, 0);
  ASSERT_EQ(control().lanes().AdmitLane(next), LaneRefusal::kNone);
  Attach(next);
  EXPECT_EQ(connections_live, 1);
  Attach(slow);
  EXPECT_EQ(connections_live, 1);
  EXPECT_EQ(Counter("phub_lanes_dropped_total"), 1u);
  Settle();
  EXPECT_EQ(cores[0]->Executed(Command::Kind::kAttachLane).size(), 1u);
}

TEST_F(LanesTest, CoresThatAreNotThereAreRefused) {
  const std::string session = Enter(0, 1);
  v1::OpenLanesRequest request;
  request.set_session_id(session);
  request.add_cores(2);
  EXPECT_EQ(OpenLanes(request)->code(), absl::StatusCode::kInvalidArgument);
  request.set_cores(0, 1);
  const auto one = OpenLanes(request);
  ASSERT_TRUE(one->ok());
  ASSERT_EQ(one->response.grants_size(), 1);
  EXPECT_EQ(one->response.grants(0).core(), 1u);
  for (int i = 0; i < 10; ++i) request.add_cores(0);
  EXPECT_EQ(OpenLanes(request)->code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace phub::server
