// Jobs with policy wait that span racks: each rack awaits its own ranks and notifies the other
// racks.
#include "tests/unit/server/control/rack_waiting_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(RackWaitingTest, ARankThatIsLostIsAwaitedInEveryRackAndComesBack) {
  EnterAll();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(InfoAt(rack).on_loss(), "wait") << rack;
    EXPECT_EQ(InfoAt(rack).wait_timeout_ns(), kWait) << rack;
  }
  Lose(kLost);
  Advance(kSecond);
  ExpectToldToAllBut(kLost, {"awaited 3"});
  for (const std::uint32_t rack : {0u, 2u}) {
    const v1::JobInfo info = InfoAt(rack);
    ASSERT_EQ(info.lost_elsewhere_size(), 1) << rack;
    EXPECT_EQ(info.lost_elsewhere(0).rank(), kLost);
    EXPECT_EQ(info.lost_elsewhere(0).host(), "node3");
    EXPECT_EQ(info.lost_elsewhere(0).state(), "lost");
    EXPECT_EQ(info.lost_elsewhere(0).awaited_for_ns(), kWait - kSecond);
    EXPECT_THAT(info.lost_elsewhere(0).loss(), HasSubstr("lane to core 0 was lost"));
    v1::ListStallsRequest request;
    request.set_job("digits");
    const auto stalls = node(rack).ListStalls(request);
    Settle();
    ASSERT_EQ(stalls->response.lost_elsewhere_size(), 1) << rack;
    EXPECT_EQ(stalls->response.lost_elsewhere(0).rank(), kLost);
  }
  EXPECT_EQ(InfoAt(1).lost_elsewhere_size(), 0);
  // Expect: a rank that attends later is notified, too.
  Return(5);
  EXPECT_EQ(ToldTo(5), std::vector<std::string>{"awaited 3"});
  Advance(kWait - 2 * kSecond);
  Return(kLost);
  ExpectToldToAllBut(kLost, {"awaited 3", "returned 3"});
  Advance(2 * kWait);
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(InfoAt(rack).lost_elsewhere_size(), 0) << rack;
    EXPECT_EQ(RefusedAt(rack), 0u) << rack;
  }
  ExpectRunStateEverywhere("standing");
  Leave({0, 1, 2, 3, 4, 5});
  ExpectRunStateEverywhere("ended");
  ExpectNothingLeft();
}

TEST_F(RackWaitingTest, ARankThatIsAwaitedInVainEndsTheJobInEveryRackAndIsNamed) {
  EnterAll();
  Lose(kLost);
  Advance(kWait - kSecond);
  EXPECT_EQ(FaultOf(0), "");
  Advance(2 * kSecond);
  for (const std::uint32_t rank : {0u, 1u, 2u, 4u, 5u}) {
    EXPECT_THAT(FaultOf(rank), AllOf(HasSubstr("rank 3 (node3, pid 4703) was lost"),
                                     HasSubstr("wait_timeout (10.0 s)")));
  }
  EXPECT_EQ(node(1).Counter("phub_ranks_awaited_in_vain_total"), 1u);
  EXPECT_EQ(InfoAt(0).lost_elsewhere_size(), 0);
  ExpectNothingLeft();
}

TEST_F(RackWaitingTest, ALostRankThatLeavesIsNotAwaitedAnyMore) {
  EnterAll();
  Lose(kLost);
  Leave({kLost});
  ExpectToldToAllBut(kLost, {"awaited 3", "returned 3"});
  Leave({0, 1, 2, 4, 5});
  ExpectRunStateEverywhere("ended");
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) EXPECT_EQ(RefusedAt(rack), 0u) << rack;
}

TEST_F(RackWaitingTest, ANewProcessTakesItsSeatAtItsOwnRackWithoutAskingAnother) {
  set_options = WaitingWithRestart;
  EnterAll();
  const int requests = node(1).network.sent[v1::PeerMessage::kRequest];
  Lose(kLost);
  CutOff(1, Cut::kAll);  // for a moment
  const auto call = Join(kLost);
  node(1).Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_TRUE(call->response.resumed());
  EXPECT_EQ(call->response.incarnation(), incarnation);
  EXPECT_EQ(node(1).network.sent[v1::PeerMessage::kRequest], requests);
  CutOff(1, Cut::kNone);
  Settle();
  ExpectToldToAllBut(kLost, {"awaited 3"});
  const std::string old = sessions[kLost];
  sessions[kLost] = call->response.session_id();
  EXPECT_TRUE(node(1).Commit(sessions[kLost])->ok());
  Return(kLost);
  ExpectToldToAllBut(kLost, {"awaited 3", "restarted 3"});
  // Expect: its keys exist already, in every rack.
  EXPECT_THAT(std::string(node(1).control().liveness().Heartbeat(old, 9).message()),
              HasSubstr("rank 3 of job digits was taken over"));
  Advance(2 * kWait);
  ExpectRunStateEverywhere("standing");
}

// Expect: a rank that saves receives the versions of the chunks at home; a rank that resumes
// receives those of all chunks.
TEST_F(RackWaitingTest, ARankAsksForTheVersionsOfAllThatItReads) {
  set_options = WaitingWithRestart;
  EnterAll();
  v1::GetVersionsRequest request;
  request.set_session_id(sessions[kLost]);
  const auto [call, answer] = RackNode::Expect<v1::GetVersionsResponse>();
  node(1).control().versions().GetVersions(request, answer);
  v1::GetJobVersionsRequest of_job;
  of_job.set_job("digits");
  node(1).GetJobVersions(of_job);
  Settle();
  const auto asked = node(1).cores[0]->Executed(Command::Kind::kReportVersions);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].rank, Rank{kLost - 2});  // numbered within its rack
  EXPECT_EQ(asked[1].rank, Rank::Max());
}

TEST_F(RackWaitingTest, AProcessThatLivesIsNamedByItsRankInTheJob) {
  set_options = WaitingWithRestart;
  EnterAll();
  const auto call = Join(kLost);
  Settle();
  EXPECT_THAT(call->message(), HasSubstr("rank 3 of job digits is held by a live worker"));
}

TEST_F(RackWaitingTest, BarriersOfAllRacksCountAcrossARestart) {
  set_options = WaitingWithRestart;
  EnterAll();
  std::vector<CallPtr<v1::BarrierResponse>> calls;
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    calls.push_back(NodeOf(rank).Barrier(sessions[rank], 0));
  }
  Settle();
  Lose(kLost);
  const auto call = Join(kLost);
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  sessions[kLost] = call->response.session_id();
  EXPECT_TRUE(node(1).Commit(sessions[kLost])->ok());
  Return(kLost);
  // Expect: the predecessor's calls count, so all barriers complete once the other ranks have
  // called.
  for (const std::uint32_t rank : {4u, 5u}) {
    calls.push_back(NodeOf(rank).Barrier(sessions[rank], 0));
  }
  Settle();
  for (const std::size_t each : {0u, 1u, 2u, 4u, 5u}) EXPECT_TRUE(calls[each]->ok()) << each;
  EXPECT_EQ(calls[3]->code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(node(1).Barrier(sessions[kLost], 0)->ok());
}

TEST_F(RackWaitingTest, ARackSpeaksOfItsOwnRanksOnlyAndOfThoseThatWereLost) {
  EnterAll();
  // Receive: a notification for another rack's rank, one for a rank that the job does not have, and
  // the return of a rank that was not awaited.
  Say(2, 0, incarnation, Awaited(kLost));
  Say(2, 0, incarnation, Awaited(kRanks));
  Say(2, 0, incarnation, Awaited(0));
  Say(1, 0, incarnation, Returned(kLost));
  Settle();
  EXPECT_EQ(RefusedAt(0), 4u);
  EXPECT_EQ(ToldTo(0), std::vector<std::string>{});
  EXPECT_EQ(InfoAt(0).lost_elsewhere_size(), 0);
  // Expect: a rank that is reported often, and with an excessive timeout, is awaited once and no
  // longer than allowed.
  v1::PeerMessage message = Awaited(kLost, 1000 * kWait);
  std::string host(100'000, 'x');
  host.back() = '\n';
  message.mutable_rank_awaited()->set_host(host);
  for (int i = 0; i < 3; ++i) Say(1, 0, incarnation, message);
  Settle();
  ASSERT_EQ(InfoAt(0).lost_elsewhere_size(), 1);
  EXPECT_EQ(InfoAt(0).lost_elsewhere(0).awaited_for_ns(), kWait);
  EXPECT_LT(InfoAt(0).lost_elsewhere(0).host().size(), 1000u);
  ExpectRunStateEverywhere("standing");
}

TEST_F(RackWaitingTest, OfAJobThatDoesNotWaitNobodyIsAwaited) {
  set_options = nullptr;
  EnterAll();
  Say(1, 0, incarnation, Awaited(kLost));
  Say(1, 0, incarnation + 1, Awaited(kLost));  // for an unknown job, which may have ended here
  Settle();
  EXPECT_EQ(RefusedAt(0), 1u);
  EXPECT_EQ(ToldTo(0), std::vector<std::string>{});
}

TEST_F(RackWaitingTest, ADaemonIsNotAwaited) {
  EnterAll();
  CutOff(2, Cut::kAll);
  Advance(2 * node(0).options.liveness_timeout);
  for (const std::uint32_t rank : {0u, 3u}) EXPECT_THAT(FaultOf(rank), HasSubstr("rack_silent"));
}

// Expect: if no rank sets the timeout, all racks use the default of the rack that asks first.
TEST_F(RackWaitingTest, ADefaultIsThatOfTheRackThatAsksForTheJob) {
  Start(1, [](ControlOptions& options) { options.wait_timeout = 7 * kSecond; });
  set_options = [](v1::JobOptions& options) { options.set_on_loss(v1::LOSS_POLICY_WAIT); };
  Enter({2});
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(InfoAt(rack).wait_timeout_ns(), 7 * kSecond) << rack;
  }
  const auto other = Join(0);
  Settle();
  EXPECT_THAT(other->message(), HasSubstr("wait_timeout"));
}

TEST_F(RackWaitingTest, TwoVersionsArePaidForInEveryRack) {
  constexpr std::uint64_t kElements = 4096;
  std::map<bool, std::vector<std::uint64_t>> bytes;  // with restart: the bytes at each rack
  for (const bool restart : {false, true}) {
    set_options = restart ? WaitingWithRestart : Waiting;
    EnterAll();
    const auto keys =
        node(0).AddKeys(RackNode::Batch(sessions[0], 0, {RackNode::Key("fc", kElements)}));
    Settle();
    ASSERT_TRUE(keys->ok()) << keys->message();
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
      bytes[restart].push_back(node(rack).control().memory_bytes());
    }
    Leave({0, 1, 2, 3, 4, 5});
    ExpectNothingLeft();
  }
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_GE(bytes[true][rack], bytes[false][rack] + kElements * sizeof(float)) << rack;
  }
}

TEST_F(RackPlanesTest, ANewProcessTakesItsSeatInEveryPlane) {
  first.set_options = second.set_options = RackWaitingTest::WaitingWithRestart;
  Enter(everybody);
  for (Plane* const plane : {&first, &second}) {
    RackNode& node = plane->NodeOf(3);
    node.last_join.set_incarnation(run);
    node.streams[plane->sessions[3]] = plane->streams[3];
    node.Die(plane->sessions[3], 3, Rank{1});
    plane->mute.insert(3);
  }
  Settle();
  const std::uint64_t standing = run;
  // Expect: the anchor's run is the current one; the next daemon refuses another one.
  Enter({3});
  EXPECT_EQ(run, standing);
  first.mute.clear();
  second.mute.clear();
  Advance(2 * RackWaitingTest::kWait);
  first.ExpectRunStateEverywhere("standing");
  second.ExpectRunStateEverywhere("standing");
  for (Plane* const plane : {&first, &second}) {
    EXPECT_EQ(plane->node(1).Counter("phub_ranks_restarted_total"), 1u);
  }
}

}  // namespace
}  // namespace phub::server
