// Jobs that span racks: they are opened in all racks or in none. Tests of every reason that ends
// them.
#include "server/control/racks/rack_jobs.h"

#include "tests/unit/server/control/fake_prefaulter.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(RackJobsTest, AJobOpensInEveryRackWhoeverAsksForIt) {
  Enter({3});
  // Expect: the ranks of the other racks need not have joined.
  ExpectRunStateEverywhere("standing");
  const std::uint64_t first = incarnation;
  Enter({0, 1, 2, 4, 5});
  EXPECT_EQ(incarnation, first);
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(node(rack).Counter("phub_jobs_created_total"), 1u);
    // In a ring over three racks, each rack is a neighbor of both others.
    EXPECT_EQ(node(rack).cores[0]->Executed(Command::Kind::kAttachLane).size(), 2u);
  }
  Leave({0, 1, 2, 3, 4, 5});
  ExpectRunStateEverywhere("ended");
  ExpectNothingLeft();
}

TEST_F(RackJobsTest, NobodyIsLetInBeforeEveryRackHasTheJob) {
  node(2).cores[0]->stopped = true;
  const auto call = Join(0);
  Settle();
  EXPECT_FALSE(call->answered());
  EXPECT_NE(StateAt(0), "standing");
  node(2).cores[0]->stopped = false;
  Settle();
  EXPECT_TRUE(call->ok()) << call->message();
  ExpectRunStateEverywhere("standing");
}

// A rank without an answer cannot commit, so its lease must not expire meanwhile.
TEST_F(RackJobsTest, ARankKeepsItsPlaceWhileTheJobIsOpened) {
  node(2).cores[0]->stopped = true;
  const auto call = Join(0);
  Advance(2 * node(0).options.liveness_timeout);
  EXPECT_FALSE(call->answered()) << call->message();
  node(2).cores[0]->stopped = false;
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_TRUE(node(0).Commit(call->response.session_id())->ok());
}

TEST_F(RackJobsTest, ARackThatNeverHasTheJobEndsItAndIsNamed) {
  node(2).cores[0]->stopped = true;
  const auto call = Join(0);
  Advance(5 * node(0).options.liveness_timeout);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rack_not_ready"), HasSubstr("rack 2 (node2:7700)"),
                                     ::testing::Not(HasSubstr("rack 1"))));
  node(2).cores[0]->stopped = false;
  ExpectNothingLeft();
}

TEST_F(RackJobsTest, KeysAreThereOnceEveryRackHasThem) {
  EnterAll();
  node(2).cores[0]->stopped = true;
  const auto keys = node(1).AddKeys(RackNode::Batch(sessions[2], 0, {RackNode::Key("fc", 4096)}));
  Settle();
  EXPECT_FALSE(keys->answered());
  node(2).cores[0]->stopped = false;
  Settle();
  EXPECT_TRUE(keys->ok()) << keys->message();
  // Expect: a rack whose ranks disagree ends the job everywhere.
  const auto other = node(2).AddKeys(RackNode::Batch(sessions[4], 0, {RackNode::Key("fc", 4095)}));
  Settle();
  EXPECT_THAT(FaultOf(0), AllOf(HasSubstr("keys_mismatch"), HasSubstr("4095")));
  EXPECT_THAT(FaultOf(5), HasSubstr("keys_mismatch"));
}

// No rank of rack 2 has asked for the keys, so no call there waits for their pages.
TEST_F(RackJobsTest, ARackHasKeysOnceTheyHavePagesAndEndsTheJobIfThereAreNone) {
  FakePrefaulter taker;
  node(2).control().host_memory().SetPrefaulter(taker);
  EnterAll();
  v1::KeySpec gathered = RackNode::Key("a", 4096);
  gathered.set_optimizer(v1::OPTIMIZER_NONE);
  gathered.set_movement(v1::MOVEMENT_GATHER);
  EXPECT_THAT(node(1).AddKeys(RackNode::Batch(sessions[2], 0, {gathered}))->message(),
              HasSubstr("movement gather does not work in jobs that span racks"));
  gathered.set_movement(v1::MOVEMENT_ALL_REDUCE);
  gathered.set_collective(true);
  EXPECT_THAT(node(1).AddKeys(RackNode::Batch(sessions[2], 0, {gathered}))->message(),
              HasSubstr("key a: collective keys do not work in jobs that span racks, except in "
                        "groups"));

  const auto first = node(1).AddKeys(RackNode::Batch(sessions[2], 0, {RackNode::Key("a", 4096)}));
  Settle();
  EXPECT_FALSE(first->answered());
  taker.SetAll(PrefaultState::kTaken);
  Settle();
  EXPECT_TRUE(first->ok()) << first->message();
  const auto second = node(1).AddKeys(RackNode::Batch(sessions[2], 1, {RackNode::Key("b", 4096)}));
  Settle();
  taker.SetAll(PrefaultState::kRefused);
  Settle();
  EXPECT_THAT(second->message(),
              AllOf(HasSubstr("out_of_memory"), HasSubstr("rack 2 (node2:7700)")));
  EXPECT_THAT(FaultOf(5), HasSubstr("out_of_memory"));
}

TEST_F(RackJobsTest, ABarrierIsOfTheRanksOfAllRacks) {
  EnterAll();
  std::vector<CallPtr<v1::BarrierResponse>> calls;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    for (const auto& call : calls) EXPECT_FALSE(call->answered()) << rank;
    calls.push_back(NodeOf(rank).Barrier(sessions[rank], 0));
    Settle();
  }
  for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
}

TEST_F(RackJobsTest, WhatOneRackRefusesIsRefusedInAll) {
  Start(2, [](ControlOptions& options) { options.memory_bytes_max = 1000; });
  const auto first = Join(0);
  const auto second = Join(2);
  Settle();
  for (const auto& call : {first, second}) {
    EXPECT_EQ(call->code(), absl::StatusCode::kAborted);
    EXPECT_THAT(call->message(), AllOf(HasSubstr("rack 2 (node2:7700) refused to open the job"),
                                       HasSubstr("rack_refused")));
  }
  ExpectNothingLeft();
}

TEST_F(RackJobsTest, WhatRack0RefusesIsToldToWhoeverAsked) {
  const auto call = Join(2, "digits", "best");
  Settle();
  EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(call->message(), HasSubstr("there is no planner best; choose one of auto"));
  EXPECT_EQ(node(0).Counter("phub_joins_refused_plan_total"), 1u);
  node(0).control().draining().Drain(kSecond);
  const auto drained = Join(2);
  Settle();
  EXPECT_THAT(drained->message(), HasSubstr("rack 0 (node0:7700) is draining"));
}

TEST_F(RackJobsTest, ARackThatWasStartedAgainEndsItsJobs) {
  EnterAll();
  Start(1);
  Settle();
  for (const std::uint32_t rank : {0u, 1u, 4u, 5u}) {
    EXPECT_THAT(FaultOf(rank),
                AllOf(HasSubstr("rack_restarted"), HasSubstr("rack 1 (node1:7700)")));
  }
  EXPECT_EQ(node(0).Counter("phub_racks_restarted_total"), 1u);
  ExpectNothingLeft();
  EnterAll();  // and the rack may come back
}

TEST_F(RackJobsTest, ASilentRackIsNamedByTheOthersAfterTheLivenessTimeout) {
  EnterAll();
  CutOff(2, Cut::kAll);
  Advance(node(0).options.liveness_timeout - 200 * kMillisecond);
  EXPECT_EQ(FaultOf(0), "");
  Advance(400 * kMillisecond);
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    EXPECT_THAT(FaultOf(rank), AllOf(HasSubstr("rack_silent"), HasSubstr("rack 2 (node2:7700)")));
  }
  EXPECT_THAT(FaultOf(4), HasSubstr("rack_silent"));
  EXPECT_EQ(node(0).Counter("phub_racks_silent_total"), 1u);
  CutOff(2, Cut::kNone);
  ExpectNothingLeft();
  EnterAll();
}

// The daemon had been silent for a while when its lanes closed. The closed lanes are the better
// evidence.
TEST_F(RackJobsTest, ASilentRackWhoseLanesWereLostIsToldAsLost) {
  EnterAll();
  CutOff(1, Cut::kAll);
  const DurationNs timeout = node(0).options.liveness_timeout;
  Advance(timeout * 3 / 4);
  for (const std::uint32_t rack : {0u, 2u}) {
    FakeCore& core = *node(rack).cores[0];
    const auto lane = std::ranges::find(core.attached, LaneOwner(RackIndex{1}), &Command::owner);
    ASSERT_NE(lane, core.attached.end());
    core.LoseLane(*lane, transport::TransportError::kPeerClosed);
  }
  Advance(timeout / 4 - 100 * kMillisecond);
  EXPECT_EQ(FaultOf(0), "") << "why may still come from there";
  Advance(200 * kMillisecond);
  for (const std::uint32_t rank : {0u, 1u, 4u, 5u}) {
    EXPECT_THAT(FaultOf(rank), AllOf(HasSubstr("rack_lost"), HasSubstr("rack 1 (node1:7700)"),
                                     HasSubstr("or the link to it probably failed")));
  }
  EXPECT_EQ(node(0).Counter("phub_racks_silent_total"), 1u);
  CutOff(1, Cut::kNone);
  ExpectNothingLeft();
}

TEST_F(RackJobsTest, WhatIsRepeatedAsItsReceiptWasLostIsHeardOnce) {
  SetCut(1, 0, Cut::kReceipts);
  Enter({2, 3});
  Leave({2, 3});
  Enter({0, 1, 4, 5});
  Leave({0, 1, 4, 5});
  Settle();
  EXPECT_EQ(node(0).Counter("phub_jobs_created_total"), 1u);
  SetCut(1, 0, Cut::kNone);
  ExpectNothingLeft();
  EXPECT_EQ(node(0).Counter("phub_jobs_created_total"), 1u);
}

// Rack 1 receives the others' messages too late: it has dropped some, and some of those belonged to
// the job.
TEST_F(RackJobsTest, DroppedMessagesEndTheJobsThatNeededThem) {
  EnterAll();
  node(1).network.queues[0].set_limits({.messages = 2, .bytes = 1 << 20});
  SetCut(1, 0, Cut::kAll);
  for (std::uint32_t batch = 0; batch < 3; ++batch) {
    const std::string name = "key" + std::to_string(batch);
    node(1).AddKeys(RackNode::Batch(sessions[2], batch, {RackNode::Key(name, 16)}));
    node(1).Settle();
  }
  EXPECT_GE(node(1).Counter("phub_peer_messages_dropped_total"), 2u);
  Settle();
  Advance(RackJobs::kFirstFaultWaitMax);  // rack 0 cannot say that it has another reason
  EXPECT_THAT(FaultOf(2), AllOf(HasSubstr("rack 0 (node0:7700)"),
                                HasSubstr("accepted no messages for too long")));
  EXPECT_THAT(FaultOf(4), HasSubstr("messages"));
  SetCut(1, 0, Cut::kNone);
  ExpectNothingLeft();
  EnterAll();
}

// The sender knows of a lost message, and the receiver detects the gap.
TEST_F(RackJobsTest, AGapInWhatARackSaysEndsTheJobsHere) {
  EnterAll();
  PeerQueue& queue = node(1).network.queues[0];
  Say(1, 0, incarnation, {});
  queue.Take(queue.first_sequence() + 1);
  Settle();
  EXPECT_THAT(FaultOf(0), AllOf(HasSubstr("rack 1 (node1:7700) dropped messages"),
                                HasSubstr("rack_messages_lost")));
  ExpectNothingLeft();
}

// Rack 0 learns last that the ranks of rack 2 have left, so it is the last to end the run.
TEST_F(RackJobsTest, ARunWaitsUntilTheOneBeforeIsOverAtRack0) {
  EnterAll();
  SetCut(2, 0, Cut::kAll);
  Leave({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(StateAt(0), "standing");
  EXPECT_EQ(StateAt(1), "ended");
  const auto next = Join(2);
  const auto beside = Join(3);
  Settle();
  EXPECT_FALSE(next->answered()) << next->message();
  SetCut(2, 0, Cut::kNone);
  Settle();
  Advance(10 * kMillisecond);
  EXPECT_TRUE(next->ok()) << next->message();
  EXPECT_TRUE(beside->ok()) << beside->message();
  EXPECT_NE(next->response.incarnation(), incarnation);
  EXPECT_EQ(node(0).Counter("phub_jobs_created_total"), 2u);
  ExpectRunStateEverywhere("standing");
}

TEST_F(RackJobsTest, ARunWaitsUntilTheOneBeforeIsOverAtAnyRack) {
  EnterAll();
  SetCut(1, 2, Cut::kAll);
  Leave({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(StateAt(0), "ended");
  EXPECT_EQ(StateAt(2), "standing");
  const auto next = Join(0);
  Settle();
  EXPECT_FALSE(next->answered()) << next->message();
  SetCut(1, 2, Cut::kNone);
  Settle();
  Advance(10 * kMillisecond);
  EXPECT_TRUE(next->ok()) << next->message();
  ExpectRunStateEverywhere("standing");
}

// The waiting run has failed meanwhile, so no rack opens it any more.
TEST_F(RackJobsTest, ARunThatFailsWhileItWaitsIsNotOpened) {
  EnterAll();
  SetCut(1, 2, Cut::kAll);
  Leave({0, 1, 2, 3, 4, 5});
  const auto next = Join(0);
  Settle();
  ASSERT_EQ(StateAt(2), "standing");  // the previous run
  v1::PeerMessage failed;
  failed.mutable_failed()->mutable_fault()->set_message("a test");
  Say(0, 2, node(0).cores[0]->executed.back().shard->config.incarnation.value, failed);
  Settle();
  SetCut(1, 2, Cut::kNone);
  Settle();
  Advance(10 * kMillisecond);
  EXPECT_EQ(StateAt(2), "ended");
  EXPECT_EQ(node(2).control().job_count(), 0u);
}

// This rack waits for the others, however long they take: no timeout ends the job, and control does
// not treat the pause as a suspension of its own process.
TEST_F(RackJobsTest, ARackWhoseRanksHaveLeftWaitsForTheOthers) {
  EnterAll();
  Leave({0, 1});
  Advance(3 * node(0).options.abandoned_timeout);
  ExpectRunStateEverywhere("standing");
  EXPECT_EQ(node(0).Counter("phub_silence_forgiven_total"), 0u);
  Leave({2, 3, 4, 5});
  ExpectRunStateEverywhere("ended");
  ExpectNothingLeft();
}

// A daemon without jobs has no reason to wake up. When it gets a job, that pause must not look like
// a suspension either.
TEST_F(RackJobsTest, TimeWithoutJobsIsNotTakenForALapse) {
  EnterAll();
  Leave({0, 1, 2, 3, 4, 5});
  Advance(kSecond);
  ExpectNothingLeft();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack)
    ASSERT_GT(node(rack).control().NextDeadline(), node(rack).clock.now + 1000 * kSecond);
  Pass(1000 * kSecond);
  EnterAll();
  ExpectRunStateEverywhere("standing");
  for (std::uint32_t rack = 0; rack < kRacks; ++rack)
    EXPECT_EQ(node(rack).Counter("phub_silence_forgiven_total"), 0u) << rack;
}

TEST_F(RackJobsTest, ALapseRightAfterTheFirstJoinBlamesNobody) {
  EnterAll();
  Leave({0, 1, 2, 3, 4, 5});
  Advance(kSecond);
  const auto call = Join(0);
  node(0).control().NextDeadline();  // as after every call
  Pass(3 * node(0).options.liveness_timeout);
  Settle();
  EXPECT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(node(0).Counter("phub_silence_forgiven_total"), 1u);
  ExpectRunStateEverywhere("standing");
}

TEST_F(RackJobsTest, AJobThatNobodyComesToEnds) {
  v1::PeerMessage request;
  request.mutable_request()->set_tenant("default");
  request.mutable_request()->set_job("digits");
  *request.mutable_request()->mutable_options() = JoinOf(2).options();
  request.mutable_request()->set_created_by(2);
  request.mutable_request()->add_daemon_cores(1);
  Say(1, 0, 0, request);
  Settle();
  ExpectRunStateEverywhere("standing");
  Advance(node(0).options.abandoned_timeout + kSecond);
  ExpectRunStateEverywhere("failed");
  EXPECT_EQ(node(1).Counter("phub_jobs_abandoned_total"), 1u);
  ExpectNothingLeft();
}

TEST_F(RackJobsTest, AJobWhoseRanksNeverCameToOneRackEndsOnceTheOthersHaveLeft) {
  Enter({0, 1, 2, 3});
  Advance(3 * node(2).options.abandoned_timeout);
  ExpectRunStateEverywhere("standing");
  Leave({0, 1, 2, 3});
  Advance(node(2).options.abandoned_timeout + kSecond);
  EXPECT_EQ(node(2).Counter("phub_jobs_abandoned_total"), 1u);
  ExpectRunStateEverywhere("failed");
  ExpectNothingLeft();
}

TEST_F(RackJobsTest, ADaemonThatStoodStillItselfBlamesNobodyThoughItHasNoWorkers) {
  Enter({0, 1, 2, 3});  // no rank of rack 2
  Advance(kSecond);
  StandStill(3 * node(2).options.liveness_timeout);
  ExpectRunStateEverywhere("standing");
  EXPECT_EQ(node(2).Counter("phub_silence_forgiven_total"), 1u);
  // Expect: that does not excuse a rack that stays silent.
  CutOff(0, Cut::kAll);
  Advance(node(2).options.liveness_timeout + kSecond);
  EXPECT_EQ(node(2).Counter("phub_racks_silent_total"), 1u);
}

TEST_F(RackJobsTest, AWorkerThatFallsSilentIsNamedInEveryRack) {
  EnterAll();
  mute = {3};
  Advance(node(1).options.liveness_timeout + kSecond);
  for (const std::uint32_t rank : {0u, 1u, 2u, 4u, 5u})
    EXPECT_THAT(FaultOf(rank), HasSubstr("rank 3"));
  EXPECT_EQ(node(0).Counter("phub_jobs_ended_elsewhere_total"), 1u);
  ExpectNothingLeft();
}

}  // namespace
}  // namespace phub::server
