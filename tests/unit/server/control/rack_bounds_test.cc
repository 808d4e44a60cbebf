// Jobs that span racks: the limits on waiting messages, and what another rack's daemon cannot do.
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Case = v1::PeerMessage::MessageCase;

class RackBoundsTest : public RackJobsTest {
 protected:
  void RequireEncryption(std::uint32_t rack) {
    node(rack).control().tenants().SetTenant({.name = "default", .encryption_required = true});
  }
};

TEST_F(RackBoundsTest, OneRequestIsEnoughForAllRanksOfAJob) {
  CutOff(0, Cut::kAll);
  Settle();
  std::vector<CallPtr<v1::JoinResponse>> calls = {Join(2), Join(3), Join(2, "other")};
  EXPECT_EQ(node(1).network.sent[Case::kRequest], 2);
  // A rank that repeats its request is answered on its new call.
  calls.push_back(Join(3));
  EXPECT_EQ(node(1).network.sent[Case::kRequest], 2);
  EXPECT_EQ(calls[1]->code(), absl::StatusCode::kCancelled);
  CutOff(0, Cut::kNone);
  Settle();
  for (const int i : {0, 2, 3}) EXPECT_TRUE(calls[i]->ok()) << calls[i]->message();
}

TEST_F(RackBoundsTest, WhoeverComesOnceTheAskerHasGivenUpAsksAnew) {
  CutOff(0, Cut::kAll);
  const DurationNs patience = 2 * node(1).options.liveness_timeout;
  const auto asker = Join(2);
  Advance(patience - kSecond);
  const auto waiting = Join(3);
  EXPECT_EQ(node(1).network.sent[Case::kRequest], 1);
  Advance(kSecond);
  EXPECT_EQ(asker->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(asker->message(), AllOf(HasSubstr("rack 0 (node0:7700)"), HasSubstr("running?")));
  Join(2);
  EXPECT_EQ(node(1).network.sent[Case::kRequest], 2);
  EXPECT_FALSE(waiting->answered());
}

TEST_F(RackBoundsTest, ADaemonOfRack0ThatWasStartedAgainIsAskedAgain) {
  Settle();
  CutOff(0, Cut::kAll);
  const auto first = Join(2);
  PeerQueue& queue = node(1).network.queues[0];
  queue.Take(queue.first_sequence() + 1);  // it received the request, and crashed
  Start(0);
  CutOff(0, Cut::kNone);
  Settle();
  EXPECT_FALSE(first->answered());
  const auto second = Join(3);
  Settle();
  EXPECT_TRUE(first->ok()) << first->message();
  EXPECT_TRUE(second->ok()) << second->message();
}

TEST_F(RackBoundsTest, SoManyRanksWaitForRack0AndNoMore) {
  CutOff(0, Cut::kAll);
  std::vector<CallPtr<v1::JoinResponse>> calls;
  for (int i = 0; i < 4096; ++i) calls.push_back(Join(2, "job" + std::to_string(i)));
  for (const auto& call : calls) ASSERT_FALSE(call->answered()) << call->message();
  const auto refused = Join(2, "one more");
  EXPECT_EQ(refused->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused->message(), AllOf(HasSubstr("one more"), HasSubstr("4096 ranks wait")));
  EXPECT_EQ(node(1).Counter("phub_joins_refused_capacity_total"), 1u);
  // Rack 0 receives no request that no rank waits for.
  EXPECT_EQ(node(1).network.sent[Case::kRequest], 4096);
  Advance(2 * node(1).options.liveness_timeout);
  for (const auto& call : calls) ASSERT_EQ(call->code(), absl::StatusCode::kUnavailable);
}

// Rack 0 would never accept a request larger than an envelope, nor any message after it.
TEST_F(RackBoundsTest, AJobThatIsTooLargeToBeAskedForIsRefusedAtOnce) {
  v1::JoinRequest request = JoinOf(2);
  v1::JobOptions& options = *request.mutable_options();
  options.GetReflection()->MutableUnknownFields(&options)->AddLengthDelimited(
      1000, std::string((4 << 20) - 1024, 'x'));
  const auto call = node(1).Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("job digits"), HasSubstr("bytes")));
  EXPECT_TRUE(node(1).network.queues[0].empty());
  EnterAll();
}

// Rack 1 learns from rack 2 that the job failed before it learns of the job.
TEST_F(RackBoundsTest, AJobThatFailedElsewhereIsNotOpenedLater) {
  SetCut(0, 1, Cut::kAll);
  const auto call = Join(4);
  Settle();
  ASSERT_NE(StateAt(2), "");
  v1::EvictJobRequest evict;
  evict.set_job("digits");
  node(2).EvictJob(evict);
  Settle();
  SetCut(0, 1, Cut::kNone);
  Advance(kSecond);
  EXPECT_FALSE(call->ok());
  EXPECT_EQ(StateAt(1), "");
  EXPECT_EQ(node(1).Counter("phub_jobs_created_total"), 0u);
}

TEST_F(RackBoundsTest, AnIncarnationThatIsTakenOrNoneIsRefused) {
  EnterAll();
  for (const std::uint64_t taken : {incarnation, std::uint64_t{0}}) {
    v1::PeerMessage open;
    open.mutable_open()->set_tenant("default");
    open.mutable_open()->set_job("another");
    *open.mutable_open()->mutable_options() = JoinOf(0).options();
    open.mutable_open()->add_daemon_cores(1);
    Say(0, 1, taken, open);
    node(0).Settle();
    SetCut(1, 0, Cut::kAll);
    Settle();
    const PeerQueue& answers = node(1).network.queues[0];
    ASSERT_FALSE(answers.empty());
    EXPECT_EQ(answers.back().opened().code(), static_cast<int>(absl::StatusCode::kAlreadyExists));
    EXPECT_THAT(answers.back().opened().message(), HasSubstr("incarnation"));
    EXPECT_EQ(StateAt(1, "another"), "");
    SetCut(1, 0, Cut::kNone);
  }
}

TEST_F(RackBoundsTest, OnlyRack0OpensAndRefuses) {
  CutOff(0, Cut::kAll);
  const auto call = Join(2);
  v1::PeerMessage open;
  open.mutable_open()->set_tenant("default");
  open.mutable_open()->set_job("digits");
  *open.mutable_open()->mutable_options() = JoinOf(0).options();
  open.mutable_open()->add_daemon_cores(1);
  Say(2, 1, 77, open);
  v1::PeerMessage refused;
  refused.mutable_refused()->set_tenant("default");
  refused.mutable_refused()->set_job("digits");
  refused.mutable_refused()->set_code(5);
  Say(2, 1, 0, refused);
  Settle();
  EXPECT_FALSE(call->answered()) << call->message();
  EXPECT_EQ(StateAt(1), "");
  EXPECT_EQ(node(1).Counter("phub_peers_refused_place_total"), 2u);
}

TEST_F(RackBoundsTest, AStartFromAnotherRackThan0OrTooEarlyStartsNothing) {
  node(1).cores[0]->stopped = node(2).cores[0]->stopped = true;
  const auto call = Join(0);
  Settle();
  const std::uint64_t opening = node(0).cores[0]->executed.front().shard->config.incarnation.value;
  v1::PeerMessage start;
  start.mutable_start();
  Say(2, 1, opening, start);
  Say(0, 1, opening, start);
  Settle();
  EXPECT_NE(StateAt(1), "standing");
  EXPECT_EQ(node(1).Counter("phub_peers_refused_place_total"), 2u);
  // Rack 1 is ready, rack 2 is not.
  node(1).cores[0]->stopped = false;
  Settle();
  Say(2, 1, opening, start);
  Settle();
  EXPECT_EQ(StateAt(1), "connecting");
  EXPECT_EQ(node(1).Counter("phub_peers_refused_place_total"), 3u);
  node(2).cores[0]->stopped = false;
  Settle();
  EXPECT_TRUE(call->ok()) << call->message();
  ExpectRunStateEverywhere("standing");
  Say(0, 1, opening, start);  // the same message again
  Settle();
  EXPECT_EQ(node(1).Counter("phub_peers_refused_place_total"), 4u);
}

TEST_F(RackBoundsTest, LanesAreGrantedAndDialledOnceHoweverOftenThatIsAskedFor) {
  node(2).cores[0]->stopped = true;
  const auto call = Join(0);
  Settle();
  const std::uint64_t opening = node(0).cores[0]->executed.front().shard->config.incarnation.value;
  v1::PeerMessage connect;
  connect.mutable_connect();
  for (int i = 0; i < 3; ++i) {
    Say(0, 1, opening, connect);
    Settle();
  }
  EXPECT_EQ(node(1).network.sent[Case::kConnect], 1) << "to rack 2";
  v1::LaneGrant& grant = *connect.mutable_connect()->add_grants();
  grant.set_nonce(std::string(wire::kNonceBytes, 'x'));
  connect.mutable_connect()->add_cores();
  Say(1, 2, opening, connect);
  Settle();
  EXPECT_EQ(node(2).Counter("phub_peers_refused_place_total"), 1u);
  // Expect: the first grant is still valid.
  node(2).cores[0]->stopped = false;
  Settle();
  EXPECT_TRUE(call->ok()) << call->message();
  ExpectRunStateEverywhere("standing");
  EXPECT_EQ(node(1).network.sent[Case::kConnect], 1 + 1) << "and ours";
}

TEST_F(RackBoundsTest, ATenantThatRequiresEncryptionHasNoPartInARackWithoutIt) {
  RequireEncryption(2);
  const auto call = Join(0);
  Settle();
  EXPECT_THAT(call->message(), AllOf(HasSubstr("tenant default requires encrypted lanes"),
                                     HasSubstr("data_tls is off at rack 2")));
  ExpectNothingLeft();
}

TEST_F(RackBoundsTest, PlainLanesThatARackGrantsAreNotDialledForSuchATenant) {
  Start(1, [](ControlOptions& options) { options.tls_lanes = true; });
  RequireEncryption(1);
  const auto call = Join(2);
  Settle();
  EXPECT_THAT(call->message(), AllOf(HasSubstr("but rack 0 (node0:7700) offers unencrypted ones"),
                                     HasSubstr("there")));
  EXPECT_EQ(node(1).Counter("phub_lanes_refused_encryption_total"), 1u);
  EXPECT_EQ(node(0).Counter("phub_lanes_admitted_total"), 0u);
  ExpectNothingLeft();
}

TEST_F(RackBoundsTest, APlainLaneOfSuchATenantIsNotAdmitted) {
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    Start(rack, [](ControlOptions& options) { options.tls_lanes = true; });
    RequireEncryption(rack);
  }
  dials_plain = true;
  const auto call = Join(0);
  Advance(node(0).options.liveness_timeout / 2 + 100 * kMillisecond);
  EXPECT_THAT(call->message(), HasSubstr("rack_unreachable"));
  EXPECT_GE(node(0).Counter("phub_lanes_refused_encryption_total"), 1u);
  EXPECT_EQ(node(0).Counter("phub_lanes_admitted_total"), 0u);
  ExpectNothingLeft();
  dials_plain = false;
  EnterAll();
}

TEST_F(RackBoundsTest, APlanThatIsNeitherANameNorAPlanIsRefusedInAFewWords) {
  for (const std::string& plan : {std::string(100'000, 'x'), std::string("ri\nng")}) {
    const auto call = Join(2, "digits", plan);
    Settle();
    EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(call->message(), HasSubstr("plan must be `auto`, the name of a planner"));
    EXPECT_LT(call->message().size(), 1000u);
  }
  EXPECT_EQ(node(1).network.sent[Case::kRequest], 0);
  const auto large = Join(2, "digits", "{" + std::string(1 << 20, ' '));
  EXPECT_THAT(large->message(),
              HasSubstr("the plan has 1048577 bytes; the limit is 1048576 bytes"));
}

// A message larger than another daemon accepts would block all messages behind it.
TEST_F(RackBoundsTest, ABatchOfKeysThatNoMessageHoldsIsRefusedAndTheJobGoesOn) {
  EnterAll();
  std::vector<v1::KeySpec> keys;
  for (int i = 0; i < 30'000; ++i) {
    keys.push_back(RackNode::Key(std::to_string(i) + std::string(100, 'x'), 1));
  }
  const auto refused = node(1).AddKeys(RackNode::Batch(sessions[2], 0, keys));
  Settle();
  EXPECT_EQ(refused->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused->message(), HasSubstr("can be sent to other racks"));
  keys.resize(100);
  const auto taken = node(1).AddKeys(RackNode::Batch(sessions[2], 0, keys));
  Settle();
  EXPECT_TRUE(taken->ok()) << taken->message();
}

// An aggregator has no ranks of its own, so errors that racks report through it name those racks.
TEST_F(RackBoundsTest, RanksBehindAnAggregatorAreNamedAsThat) {
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    Start(rack, [](ControlOptions& options) {
      options.aggregator_count = 1;
      options.rack_topology =
          std::make_shared<const plan::Topology>(*plan::Generate("switch:2,aggregate"));
    });
  }
  v1::JoinRequest request = RackNode::JoinOf(0, 4, "digits");
  request.mutable_options()->set_plan("in-switch");
  const auto call = node(0).Join(request);
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  FakeCore& core = *node(0).cores[0];
  JobShard* const shard = core.Executed(Command::Kind::kAddJob).back().shard;
  shard->conflict = {
      {.is_known = true, .version = HyperVersion{2}},  // the values stay in their rack
      {.is_known = true,
       .version = HyperVersion{2},
       .has_values = true,
       .values = {.learning_rate = 0.1}}};
  core.Emit({.kind = Event::Kind::kFault,
             .code = FaultCode::kRoundMismatch,
             .source = RackIndex{2},
             .other = RackIndex{0},
             .key = KeyIndex::Max(),
             .shard = shard});
  Settle();
  v1::GetJobRequest get;
  get.set_job("digits");
  EXPECT_THAT(
      node(0).GetJob(get)->response.fault(),
      HasSubstr("ranks behind aggregator 2 (node2:7700) pushed a gradient with other "
                "hyper-parameters and ranks 0 to 1 in rack 0 (node0:7700) pushed a gradient "
                "with learning_rate=0.1"));
}

// The reason why another daemon refuses this daemon's messages is also reported to the workers.
TEST_F(RackBoundsTest, WorkersAreToldWhatDoesNotFitBetweenTwoRacks) {
  Start(1, [](ControlOptions& options) {
    options.rack_endpoints = {"node1:7699", "node1:7700"};
    options.rack_self = 1;
  });
  const auto call = Join(0);
  Advance(node(0).options.liveness_timeout + 300 * kMillisecond);
  EXPECT_THAT(
      call->message(),
      AllOf(HasSubstr("rack_silent"), HasSubstr("rack 1 (node1:7700) has sent no message"),
            HasSubstr("refuses messages from this daemon: rack 0's daemon 0 of 1 "
                      "(node0:7700) expects this one to be its counterpart, but it is rack 1's "
                      "daemon 1 of 2 (node1:7700)")));
  // Expect: a rank that waits for rack 0 to open its job receives it as well.
  Start(1, [](ControlOptions& options) {
    options.rack_topology = std::make_shared<const plan::Topology>(*plan::Generate("ring:3"));
  });
  const auto waits = Join(2);
  Advance(2 * node(1).options.liveness_timeout);
  EXPECT_THAT(waits->message(),
              AllOf(HasSubstr("rack 0 (node0:7700)"), HasSubstr("does not answer"),
                    HasSubstr("topology is switch:3 at rack 0 and ring:3 at rack 1"),
                    HasSubstr("--dump-config"), Not(HasSubstr("has configuration"))));
  // Expect: once they match, nothing remains.
  Start(1);
  Settle();  // rack 0 learns of the runs that failed
  EnterAll();
  CutOff(1, Cut::kAll);
  Advance(node(0).options.liveness_timeout + 300 * kMillisecond);
  EXPECT_THAT(FaultOf(0), AllOf(HasSubstr("rack_silent"), Not(HasSubstr("refuses messages"))));
}

TEST_F(RackBoundsTest, APhubdThatDoesNotSayWhichOfItsRackItIsIsOlder) {
  v1::PeerEnvelope envelope = node(0).control().rack_messages().MakeEnvelope(RackIndex{1});
  envelope.clear_daemon();
  envelope.clear_daemon_count();
  envelope.clear_endpoint();
  const absl::Status status = node(1).control().rack_messages().CheckEnvelope(envelope);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the phubd of rack 0 (node0:7700) is older than this one"),
                    HasSubstr("upgrade it")));
  EXPECT_EQ(node(1).Counter("phub_peers_refused_version_total"), 1u);
  EXPECT_EQ(node(1).Counter("phub_peers_refused_place_total"), 0u);
}

}  // namespace
}  // namespace phub::server
