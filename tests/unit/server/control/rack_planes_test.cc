// Jobs across racks of several daemons each: daemon d of every rack exchanges with the daemons d of
// the other racks, which form a plane. Planes learn of each other only through workers.
#include "server/control/ranks/local_rack.h"
#include "server/control/shared_settings.h"
#include "tests/unit/server/control/checkpoint_fixture.h"
#include "tests/unit/server/control/rack_planes_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(RackPlanesTest, BothPlanesOpenTheRunThatRack0sFirstDaemonDrewWhoeverComesFirst) {
  Enter({3});
  first.ExpectRunStateEverywhere("standing");
  second.ExpectRunStateEverywhere("standing");
  const std::uint64_t drawn = run;
  Enter({0, 1, 2, 4, 5});
  EXPECT_EQ(run, drawn);
  first.Leave(everybody);
  second.Leave(everybody);
  first.ExpectRunStateEverywhere("ended");
  second.ExpectRunStateEverywhere("ended");
  first.ExpectNothingLeft();
  second.ExpectNothingLeft();
}

// Expect: for a key that begins at one daemon, the other daemon refuses pieces that start at its
// first element.
TEST_F(RackPlanesTest, APieceOfAnotherDaemonsChunksIsRefused) {
  std::vector<std::unique_ptr<KeepingCore>> keeping;
  for (Plane* const plane : {&first, &second}) {
    for (std::uint32_t rack = 0; rack < Plane::kRacks; ++rack) {
      plane->node(rack).control();
      keeping.push_back(std::make_unique<KeepingCore>(*plane->node(rack).cores[0]));
    }
  }
  Enter(everybody);
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (Plane* const plane : {&first, &second}) {
    for (const std::uint32_t rank : everybody) {
      calls.push_back(plane->NodeOf(rank).AddKeys(
          RackNode::Batch(plane->sessions[rank], 0, {RackNode::Key("a", 2000)})));
    }
  }
  Settle();
  for (const auto& call : calls) ASSERT_TRUE(call->ok()) << call->message();
  std::vector<absl::StatusCode> codes;
  for (Plane* const plane : {&first, &second}) {
    v1::LoadStateRequest load;
    load.set_session_id(plane->sessions[0]);
    load.set_iteration(40);
    load.add_keys()->set_reductions(40);
    const auto begun = plane->node(0).control().loads().BeginLoad(load);
    ASSERT_TRUE(begun.ok()) << begun.status();
    v1::LoadStateRequest part;
    v1::StatePiece& piece = *part.add_pieces();
    piece.set_tensor(v1::STATE_TENSOR_PARAMETERS);
    piece.set_elements(std::string(sizeof(float), '\0'));
    codes.push_back(plane->node(0).control().loads().LoadPart(*begun, part).code());
  }
  EXPECT_THAT(codes, ::testing::UnorderedElementsAre(absl::StatusCode::kOk,
                                                     absl::StatusCode::kInvalidArgument));
}

// Expect: whichever rack asks first, there is one run, and each daemon that is asked answers.
TEST_F(RackPlanesTest, RanksOfAllRacksMayAskAtOnce) {
  std::map<std::uint32_t, CallPtr<v1::JoinResponse>> calls;
  for (const std::uint32_t rank : everybody) calls[rank] = first.Join(rank);
  first.Settle();
  for (const auto& [rank, call] : calls) {
    ASSERT_TRUE(call->ok()) << rank << call->message();
    run = call->response.incarnation();
  }
  for (const std::uint32_t rank : {5, 4, 3, 2, 1, 0}) calls[rank] = second.Join(rank, run);
  second.Settle();
  for (const auto& [rank, call] : calls) EXPECT_TRUE(call->ok()) << rank << call->message();
  EXPECT_EQ(second.node(0).Counter("phub_jobs_created_total"), 1u);
}

TEST_F(RackPlanesTest, DaemonsWithOneNumberOwnTheSameChunksInAllRacks) {
  Enter(everybody);
  const auto keys = {RackNode::Key("a", 20 * 256), RackNode::Key("b", 3)};
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (Plane* const plane : {&first, &second}) {
    for (const std::uint32_t rank : everybody) {
      calls.push_back(plane->NodeOf(rank).AddKeys(RackNode::Batch(plane->sessions[rank], 0, keys)));
    }
  }
  Settle();
  for (const auto& call : calls) {
    ASSERT_TRUE(call->ok()) << call->message();
    EXPECT_EQ(call->response.SerializeAsString(), calls[0]->response.SerializeAsString());
  }
  std::vector<std::size_t> counts(kDaemons);
  for (const v1::KeyPlacement& placed : calls[0]->response.placements()) {
    for (const std::uint32_t bin : placed.chunk_bins()) ++counts.at(bin);
  }
  EXPECT_EQ(counts[0] + counts[1], 21u);
  for (std::uint32_t rack = 0; rack < Plane::kRacks; ++rack) {
    for (Plane* const plane : {&first, &second}) {
      FakeCore& core = *plane->node(rack).cores[0];
      const KeyBatch& batch = *core.Executed(Command::Kind::kAddKeys).at(0).batch;
      EXPECT_EQ(batch.chunks.size(), counts[plane == &first ? 0 : 1]) << rack;
    }
  }
}

TEST_F(RackPlanesTest, AFaultOfOnePlaneIsBroughtToTheOtherByWorkersAndToldInAllItsRacks) {
  Enter(everybody);
  second.CutOff(1, Plane::Cut::kAll);
  Advance(second.node(0).options.liveness_timeout + 500 * kMillisecond);
  const std::string why = second.FaultOf(0);
  EXPECT_THAT(why, AllOf(HasSubstr("rack_silent"), HasSubstr("rack 1 (node1:7701)")));
  EXPECT_EQ(first.FaultOf(0), "");
  EXPECT_TRUE(first.GiveBack(0, first.sessions[0], why, /*run_is_over=*/false)->ok());
  Settle();
  for (const std::uint32_t rank : everybody) EXPECT_EQ(first.FaultOf(rank), why);
}

// Otherwise, every retry meets a run that cannot be completed, until the run is abandoned.
TEST_F(RackPlanesTest, ARunThatIsOverInOnePlaneIsEndedByAReservationThatIsGivenBack) {
  second.CutOff(2, Plane::Cut::kAll);
  const auto at_first = first.Join(0);
  Settle();
  ASSERT_TRUE(at_first->ok()) << at_first->message();
  const auto at_second = second.Join(0, at_first->response.incarnation());
  Advance(second.node(0).options.liveness_timeout + 500 * kMillisecond);
  ASSERT_EQ(at_second->code(), absl::StatusCode::kAborted) << at_second->message();
  EXPECT_THAT(at_second->message(), HasSubstr("rack 2 (node2:7701)"));
  const auto left = first.GiveBack(0, at_first->response.session_id(),
                                   std::string(at_second->message()), /*run_is_over=*/true);
  EXPECT_TRUE(left->ok()) << left->message();
  Settle();
  first.ExpectRunStateEverywhere("failed");
  second.CutOff(2, Plane::Cut::kNone);
  Advance(kSecond);
  Enter(everybody);
  EXPECT_NE(run, at_first->response.incarnation());
}

TEST_F(RackPlanesTest, AReservationThatIsGivenBackForOtherReasonsEndsNothing) {
  Enter({1, 2, 3});
  const auto call = first.Join(0);
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_TRUE(first.GiveBack(0, call->response.session_id(), "no daemon", false)->ok());
  Settle();
  first.ExpectRunStateEverywhere("standing");
  // Expect: a rank of another rack cannot ask for a run that is over here.
  v1::LeaveRequest request;
  EXPECT_TRUE(second.GiveBack(1, second.sessions[1], "rank 1 gave up", false)->ok());
  Settle();
  const auto late = second.Join(4, run);
  Settle();
  EXPECT_EQ(late->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(late->message(), HasSubstr("rank 1 gave up"));
}

// The planes of the next daemons may take a while, during which this daemon receives no heartbeats
// from the rank.
TEST_F(RackPlanesTest, AReservationOutlivesTheOpeningOfOtherPlanesAndThenLapses) {
  const DurationNs liveness = first.node(0).options.liveness_timeout;
  second.node(2).cores[0]->stopped = true;
  const auto at_first = first.Join(0);
  Settle();
  const auto at_second = second.Join(0, at_first->response.incarnation());
  Advance(4 * liveness);
  EXPECT_FALSE(at_second->answered()) << at_second->message();
  second.node(2).cores[0]->stopped = false;
  Settle();
  ASSERT_TRUE(at_second->ok()) << at_second->message();
  EXPECT_TRUE(first.node(0).Commit(at_first->response.session_id())->ok());
  // Expect: it died before it committed here. Its place is free, and the job continues without it.
  Advance(9 * liveness);
  EXPECT_EQ(second.node(0).Counter("phub_reservations_lapsed_total"), 1u);
  EXPECT_TRUE(second.StateAt(0) == "standing") << second.StateAt(0);
}

// All ranks have left, but rack 0's second daemon does not know it yet.
TEST_F(RackPlanesTest, TheNextRunWaitsUntilTheOneBeforeIsOverInEveryPlane) {
  for (const std::uint32_t rank : {0u, 3u}) {
    Enter(everybody);
    const std::uint32_t rack = rank / 2;
    const std::uint32_t other = rack == 0 ? 2 : 0;
    second.SetCut(other, rack, Plane::Cut::kAll);
    first.Leave(everybody);
    second.Leave(everybody);
    first.ExpectRunStateEverywhere("ended");
    EXPECT_EQ(second.StateAt(rack), "standing");
    const auto at_first = first.Join(rank);
    Settle();
    ASSERT_TRUE(at_first->ok()) << at_first->message();
    const auto at_second = second.Join(rank, at_first->response.incarnation());
    Settle();
    EXPECT_FALSE(at_second->answered()) << at_second->message();
    second.SetCut(other, rack, Plane::Cut::kNone);
    Advance(kSecond);
    ASSERT_TRUE(at_second->ok()) << at_second->message();
    EXPECT_EQ(second.node(rack).Counter("phub_jobs_superseded_total"), 0u);
    EXPECT_EQ(second.node(rack).Counter("phub_jobs_failed_total"), 0u);
    first.GiveBack(rank, at_first->response.session_id(), "over", true);
    second.GiveBack(rank, at_second->response.session_id(), "over", true);
    Advance(kSecond);
    for (std::uint32_t r = 0; r < Plane::kRacks; ++r) {
      first.Restart(r);
      second.Restart(r);
    }
    Advance(kSecond);
  }
}

// The run failed in the first plane, and no worker is left to report that to the second one.
TEST_F(RackPlanesTest, ARunThatIsOverAtTheFirstDaemonsGivesWayToTheNextInEveryPlane) {
  Enter({0, 3});
  EXPECT_TRUE(first.GiveBack(0, first.sessions[0], "rank 0 gave up", false)->ok());
  Settle();
  const std::uint64_t old = run;
  for (const std::uint32_t rank : {3u, 0u}) first.sessions.erase(rank);
  const auto at_first = first.Join(2);
  Settle();
  ASSERT_TRUE(at_first->ok()) << at_first->message();
  EXPECT_NE(at_first->response.incarnation(), old);
  const auto at_second = second.Join(2, at_first->response.incarnation());
  Settle();
  EXPECT_TRUE(at_second->ok()) << at_second->message();
  EXPECT_THAT(second.FaultOf(0), HasSubstr("superseded"));
  EXPECT_THAT(second.FaultOf(3), HasSubstr("superseded"));
}

// The request was delayed, and no rank waits for that run any more.
TEST_F(RackPlanesTest, ARequestThatComesLateEndsNoRun) {
  Enter({0, 3});
  const v1::PeerMessage message = RequestOfRank2();
  second.Say(1, 0, run + 1, message);
  Advance(kSecond);
  EXPECT_EQ(second.FaultOf(0), "");
  second.ExpectRunStateEverywhere("standing");
  // Expect: first daemons must not name the run in messages to each other, and other daemons must.
  first.Say(1, 0, run + 1, message);
  second.Say(1, 0, 0, message);
  Settle();
  EXPECT_EQ(first.node(0).Counter("phub_peers_refused_place_total"), 1u);
  EXPECT_EQ(second.node(0).Counter("phub_peers_refused_place_total"), 1u);
}

// A rank that waits is refused with the reason once it is clear that the older run is not about to
// end.
TEST_F(RackPlanesTest, ARequestThatAnotherRunIsInTheWayOfIsRefusedWithThat) {
  Enter({0, 3});
  const v1::PeerMessage message = RequestOfRank2();
  second.Say(1, 0, run + 1, message);
  const DurationNs patience = second.node(0).options.liveness_timeout;
  Advance(patience - 200 * kMillisecond);
  PeerQueue& answers = second.node(0).network.queues[1];
  EXPECT_EQ(second.node(0).network.sent[v1::PeerMessage::kRefused], 0);
  second.SetCut(0, 1, Plane::Cut::kAll);
  Advance(400 * kMillisecond);
  ASSERT_FALSE(answers.empty());
  EXPECT_EQ(answers.back().incarnation(), run + 1);
  EXPECT_THAT(answers.back().refused().message(),
              AllOf(HasSubstr("rack 0 (node0:7701) has another run of it"), HasSubstr("try again"),
                    HasSubstr("evict")));
  EXPECT_EQ(second.FaultOf(0), "");
  // Expect: it is not asked again.
  Advance(300 * kMillisecond);
  EXPECT_EQ(second.node(0).network.sent[v1::PeerMessage::kRefused], 1);
}

// The workers of that run may be gone, but those of the rack's own job are here.
TEST_F(RackPlanesTest, ARunOfOtherRacksDoesNotEndAJobOfOneRack) {
  constexpr std::uint64_t kLocalRun = 4711;
  v1::JoinRequest local = second.JoinOf(2, kLocalRun);
  local.mutable_options()->clear_plan();
  local.set_rank(0);
  local.mutable_options()->set_world_size(1);
  const auto own = second.NodeOf(2).Join(local);
  Settle();
  ASSERT_TRUE(own->ok()) << own->message();
  const auto at_first = first.Join(0);
  Settle();
  ASSERT_TRUE(at_first->ok()) << at_first->message();
  const auto at_second = second.Join(0, at_first->response.incarnation());
  Settle();
  EXPECT_THAT(at_second->message(), HasSubstr("already runs another job digits"));
  EXPECT_TRUE(second.NodeOf(2).Commit(own->response.session_id())->ok());
}

TEST_F(RackPlanesTest, DaemonsThatAreNoCounterpartsAreRefusedAndBothNamed) {
  const v1::PeerEnvelope envelope =
      first.node(0).control().rack_messages().MakeEnvelope(RackIndex{1});
  const absl::Status status = second.node(1).control().rack_messages().CheckEnvelope(envelope);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rack 0's daemon 0 of 2 (node0:7700)"),
                    HasSubstr("rack 1's daemon 1 of 2 (node1:7701)")));
  EXPECT_EQ(second.node(1).Counter("phub_peers_refused_place_total"), 1u);
  RackNode alone(1, Plane::kRacks, 99);
  EXPECT_THAT(std::string(alone.control().rack_messages().CheckEnvelope(envelope).message()),
              AllOf(HasSubstr("rack 0's daemon 0 of 2 (node0:7700)"),
                    HasSubstr("rack 1's daemon 0 of 1 (node1:7700)")));
}

TEST_F(RackPlanesTest, RacksWhoseOtherDaemonsHaveOtherCoreLoopsDoNotShareAJob) {
  const auto with = [&](std::uint32_t rank, std::uint32_t others) {
    v1::JoinRequest request = first.JoinOf(rank, 0);
    request.set_daemon_cores(1, others);
    return first.NodeOf(rank).Join(request);
  };
  const auto rank0 = with(0, 3);
  Settle();
  ASSERT_TRUE(rank0->ok()) << rank0->message();
  const auto rank2 = with(2, 1);
  Settle();
  EXPECT_THAT(rank2->message(), HasSubstr("a rack of daemons with 1, 1 core loops, but rank 0 "
                                          "created it with 1, 3"));
  // Expect: what rack 0 says of this daemon itself is looked at, too.
  v1::PeerMessage message;
  v1::PeerJob& job = *message.mutable_open();
  job.set_tenant("default");
  job.set_job("other");
  *job.mutable_options() = first.JoinOf(0, 0).options();
  job.add_daemon_cores(4);
  job.add_daemon_cores(1);
  first.Say(0, 1, 77, message);
  job.clear_daemon_cores();
  first.Say(0, 1, 78, message);
  Settle();
  EXPECT_EQ(first.StateAt(1, "other"), "");
}

TEST(RackPlanes, TheConfigurationIsThePlaceInTheRackAndAmongRacks) {
  const auto hashes = [](const std::function<void(ControlOptions&)>& change) {
    RackNode node(0, 3, 1);
    node.options.rack_endpoints = {"node0:7700", "node0:7701"};
    change(node.options);
    return std::pair(HashOfConfiguration(node.options), HashOfRacks(node.options, 1));
  };
  const auto [in_rack, among_racks] = hashes([](auto&) {});
  const auto second = hashes([](auto& options) { options.rack_self = 1; });
  EXPECT_EQ(second.first, in_rack);
  EXPECT_NE(second.second, among_racks);
  const auto third = hashes([](auto& options) { options.rack_endpoints.push_back("node0:7702"); });
  EXPECT_NE(third.first, in_rack);
  EXPECT_NE(third.second, among_racks);
  const auto renamed = hashes([](auto& options) { options.rack_endpoints[1] = "node0:1"; });
  EXPECT_NE(renamed.first, in_rack);
  EXPECT_EQ(renamed.second, among_racks);
  // Expect: daemons of one rack agree on the rack's index and on the topology.
  const auto elsewhere = hashes([](auto& options) { options.rack_index = 1; });
  EXPECT_NE(elsewhere.first, in_rack);
  EXPECT_EQ(elsewhere.second, among_racks);
  const auto ring = hashes([](auto& options) {
    options.rack_topology = std::make_shared<const plan::Topology>(*plan::Generate("ring:3"));
  });
  EXPECT_NE(ring.first, in_rack);
  EXPECT_NE(ring.second, among_racks);
}

}  // namespace
}  // namespace phub::server
