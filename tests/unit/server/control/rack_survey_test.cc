// Racks whose topology is measured: when, which jobs wait for it, and which topologies daemons
// refuse.
#include <algorithm>

#include "common/plan/measured.h"
#include "common/plan/topology_json.h"
#include "server/control/shared_settings.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Case = v1::PeerMessage::MessageCase;

constexpr DurationNs kPatience = 24 * kSecond;  // with a survey

class FakeSurveyor final : public Surveyor {
 public:
  void Begin() override { ++begun; }
  int begun = 0;
};

// Two racks close to each other, and a third one far away.
MeasuredTopology Measured(std::uint32_t alone) {
  plan::Measured measured;
  measured.round_trip_s.assign(3, std::vector<double>(3, 1e-4));
  measured.bytes_per_s.assign(3, std::vector<double>(3, 1e6));
  plan::RankGroups groups(2);
  for (std::uint32_t rack = 0; rack < 3; ++rack) groups[rack == alone ? 1 : 0].push_back(rack);
  const auto [a, b] = std::pair(groups[0][0], groups[0][1]);
  measured.bytes_per_s[a][b] = measured.bytes_per_s[b][a] = 1e8;
  std::sort(groups.begin(), groups.end());
  const plan::SquareMatrix between(2, std::vector<double>(2, 1e6));
  const auto made = plan::TopologyOf({"m0", "m1", "m2"}, measured, groups, between);
  EXPECT_TRUE(made.ok()) << made.status();
  return {std::make_shared<const plan::Topology>(*made), 1'700'000'000 * kSecond};
}

class RackSurveyTest : public RackJobsTest {
 protected:
  RackSurveyTest() {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) StartMeasured(rack);
  }
  void StartMeasured(std::uint32_t rack) {
    Start(rack, [](ControlOptions& options) { options.topology_is_measured = true; });
    if (rack == 0) node(0).control().survey().SetSurveyor(surveyor_);
  }
  void Survey(const absl::StatusOr<MeasuredTopology>& surveyed) {
    node(0).control().survey().OnSurvey(surveyed);
    Settle();
  }
  v1::ExchangeInfo ExchangeAt(std::uint32_t rack, const std::string& job = "digits") {
    v1::GetJobRequest request;
    request.set_job(job);
    return node(rack).GetJob(request)->response.exchange();
  }
  std::string WaitsFor(std::uint32_t rack, const std::string& job) {
    v1::GetRackRequest request;
    request.set_job(job);
    return node(rack).GetRack(request)->response.waits_for();
  }
  static std::string TextOf(const MeasuredTopology& measured) {
    return plan::TopologyToJson(*measured.topology);
  }
  // Rack 0's message to rack 1 that opens a job. Rack 1 does not receive it.
  v1::PeerMessage OpenForRack1() {
    Settle();
    node(0).network.Keep(RackIndex{1}, v1::PeerMessage::kOpen);
    const auto call = Join(0, "captured");
    Settle();
    EXPECT_EQ(node(0).network.kept.size(), 1u) << call->message();
    node(0).network.Keep(RackIndex{1}, std::nullopt);
    v1::PeerMessage open = node(0).network.kept.at(0);
    open.mutable_open()->set_job("forged");
    return open;
  }
  std::uint64_t RefusedAt(std::uint32_t rack) {
    return node(rack).Counter("phub_topologies_refused_total");
  }

  FakeSurveyor surveyor_;
};

TEST_F(RackSurveyTest, ItIsMeasuredOnceWhenEveryRackIsHeardOf) {
  CutOff(2, Cut::kAll);
  Settle();
  EXPECT_EQ(surveyor_.begun, 0);
  EXPECT_THAT(node(0).control().survey().DescribeTopology().state,
              AllOf(HasSubstr("has accepted no message from"), HasSubstr("rack 2 (node2:7700)")));
  CutOff(2, Cut::kNone);
  Settle();
  EXPECT_EQ(surveyor_.begun, 1);
  EXPECT_EQ(node(0).control().survey().DescribeTopology().state, "being measured");
  Survey(Measured(1));
  Advance(10 * kSecond);
  EXPECT_EQ(surveyor_.begun, 1);
  EXPECT_EQ(node(0).control().survey().DescribeTopology().state, "measured");
  EXPECT_EQ(node(0).Counter("phub_surveys_total"), 1u);
  StartMeasured(0);  // rack 0 has forgotten the topology
  Settle();
  EXPECT_EQ(surveyor_.begun, 2);
}

TEST_F(RackSurveyTest, JobsThatComeEarlierWaitAndArePlannedForIt) {
  std::vector<CallPtr<v1::JoinResponse>> calls;
  for (std::uint32_t rank = 0; rank < 5; ++rank) calls.push_back(Join(rank, "digits", "auto"));
  Settle();
  Advance(3 * node(0).options.liveness_timeout);
  for (const auto& call : calls) ASSERT_FALSE(call->answered()) << call->message();
  EXPECT_THAT(WaitsFor(0, "digits"),
              AllOf(HasSubstr("plan is not ready"), HasSubstr("which is being measured"),
                    HasSubstr("phubctl plan probe --apply")));
  EXPECT_THAT(WaitsFor(1, "digits"),
              AllOf(HasSubstr("plan is not ready"), HasSubstr("rack 0 (node0:7700) makes it")));
  EXPECT_EQ(WaitsFor(0, "other"), "");
  Survey(Measured(1));
  for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    const v1::ExchangeInfo exchange = ExchangeAt(rack);
    EXPECT_EQ(exchange.state(), "standing");
    EXPECT_EQ(exchange.topology(), "measured");
    EXPECT_EQ(exchange.measured_topology(), TextOf(Measured(1)));
    EXPECT_EQ(exchange.measured_unix_ns(), 1'700'000'000 * kSecond);
    EXPECT_EQ(node(rack).Counter("phub_silence_forgiven_total"), 0u);
  }
}

// Requests are refused after half a minute. A job that no rank waits for is not opened then.
TEST_F(RackSurveyTest, JobsThatWaitedTooLongAreNotOpenedAfterwards) {
  const auto call = Join(2);
  Settle();
  Advance(40 * kSecond);
  EXPECT_EQ(call->code(), absl::StatusCode::kUnavailable);
  Survey(Measured(1));
  Settle();
  EXPECT_EQ(node(0).Counter("phub_jobs_created_total"), 0u);
  const auto again = Join(2);
  Settle();
  EXPECT_EQ(node(0).Counter("phub_jobs_created_total"), 1u);
  EXPECT_FALSE(again->answered() && !again->ok()) << again->message();
}

TEST_F(RackSurveyTest, AfterOneThatFailedJobsAreRefusedAndTheNextHasItTriedAgain) {
  const auto first = Join(0), other = Join(2);
  Settle();
  Survey(absl::AbortedError("the probe of rack 2 from rack 1 failed: it is gone"));
  for (const auto& call : {first, other}) {
    EXPECT_EQ(call->code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(call->message(), AllOf(HasSubstr("job digits was not opened"),
                                       HasSubstr("rack 2 from rack 1 failed: it is gone")));
  }
  EXPECT_EQ(node(0).Counter("phub_surveys_failed_total"), 1u);
  EXPECT_THAT(node(0).control().survey().DescribeTopology().state, HasSubstr("rack 2 from rack 1"));
  Advance(10 * kSecond);
  EXPECT_EQ(surveyor_.begun, 1);  // no job asks
  const auto again = Join(2);
  Settle();
  EXPECT_EQ(surveyor_.begun, 2);
  EXPECT_FALSE(again->answered());
  Survey(Measured(0));
  EXPECT_TRUE(again->ok()) << again->message();
}

TEST_F(RackSurveyTest, ARackThatWasNeverHeardOfIsNamedInTime) {
  CutOff(2, Cut::kAll);
  const auto call = Join(0), other = Join(2);
  Advance(3 * node(0).options.liveness_timeout);
  for (const auto& each : {call, other}) {
    EXPECT_EQ(each->code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(each->message(),
                AllOf(HasSubstr("has accepted no message from rack 2 (node2:7700)"),
                      HasSubstr("running?")));
  }
  EXPECT_EQ(surveyor_.begun, 0);
  // Its answer arrives, which is enough for the next job.
  CutOff(2, Cut::kNone);
  Settle();
  EXPECT_EQ(surveyor_.begun, 1);
}

TEST_F(RackSurveyTest, NobodyWaitsForEver) {
  const auto call = Join(0), other = Join(2);
  const DurationNs patience = 2 * node(0).options.liveness_timeout + kPatience;
  Advance(patience - kSecond);
  EXPECT_FALSE(call->answered());
  EXPECT_FALSE(other->answered());
  Advance(2 * kSecond);
  for (const auto& each : {call, other}) {
    EXPECT_EQ(each->code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(each->message(), AllOf(HasSubstr("rack 0 (node0:7700)"), HasSubstr("try again")));
  }
}

TEST_F(RackSurveyTest, Rack0ThatIsGoneIsSaidAsSoonAsWithoutASurvey) {
  Settle();
  const auto call = Join(2);
  Settle();
  Advance(kSecond);
  CutOff(0, Cut::kAll);
  Advance(2 * node(1).options.liveness_timeout);
  EXPECT_EQ(call->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(call->message(), HasSubstr("does not answer"));
}

TEST_F(RackSurveyTest, Rack0ThatGoesWhileRanksHaveWaitedLongIsMissedAsSoon) {
  Settle();
  const auto call = Join(2);
  Settle();
  Advance(3 * node(1).options.liveness_timeout);
  EXPECT_FALSE(call->answered());
  CutOff(0, Cut::kAll);
  Advance(2 * node(1).options.liveness_timeout);
  EXPECT_EQ(call->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(call->message(), HasSubstr("does not answer"));
  EXPECT_EQ(node(1).Counter("phub_silence_forgiven_total"), 0u);
}

TEST_F(RackSurveyTest, ADaemonThatDrainsRefusesWhoWaits) {
  const auto call = Join(0), other = Join(2);
  Settle();
  node(0).control().draining().Drain(kSecond);
  Advance(kSecond);
  for (const auto& each : {call, other}) {
    EXPECT_EQ(each->code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(each->message(), HasSubstr("draining"));
  }
  const auto late = Join(1);
  EXPECT_THAT(late->message(), HasSubstr("draining"));
  Survey(Measured(0));
}

TEST_F(RackSurveyTest, ANewTopologyIsForNewJobsOnly) {
  Settle();
  Survey(Measured(1));
  const auto first = Join(0, "first", "auto");
  Settle();
  ASSERT_TRUE(first->ok()) << first->message();
  const v1::ExchangeInfo before = ExchangeAt(1, "first");
  ASSERT_TRUE(node(0).control().survey().ApplyTopology(TextOf(Measured(2)), 42).ok());
  const auto second = Join(1, "second", "auto");
  Settle();
  ASSERT_TRUE(second->ok()) << second->message();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(ExchangeAt(rack, "first").measured_topology(), TextOf(Measured(1)));
    EXPECT_EQ(ExchangeAt(rack, "first").plan(), before.plan());
    EXPECT_EQ(ExchangeAt(rack, "second").measured_topology(), TextOf(Measured(2)));
    EXPECT_EQ(ExchangeAt(rack, "second").measured_unix_ns(), 42);
    EXPECT_NE(ExchangeAt(rack, "second").plan(), before.plan());
  }
  EXPECT_EQ(node(0).Counter("phub_topologies_applied_total"), 1u);
}

TEST_F(RackSurveyTest, WhatAnOperatorSaysStandsBeforeTheSurveyIsDone) {
  const auto call = Join(2);
  Settle();
  ASSERT_TRUE(node(0).control().survey().ApplyTopology(TextOf(Measured(2)), 42).ok());
  Settle();
  EXPECT_TRUE(call->ok()) << call->message();
  Survey(Measured(1));
  const auto other = Join(0, "other");
  Settle();
  EXPECT_EQ(ExchangeAt(1, "other").measured_topology(), TextOf(Measured(2)));
}

TEST_F(RackSurveyTest, OnlyRack0TakesOneAndOnlyOfTheseRacks) {
  EXPECT_EQ(node(1).control().survey().ApplyTopology(TextOf(Measured(1)), 1).code(),
            absl::StatusCode::kFailedPrecondition);
  for (const std::string& text : {std::string(), std::string("{}"), std::string(2 << 20, ' '),
                                  plan::TopologyToJson(*plan::Generate("switch:4")),
                                  plan::TopologyToJson(*plan::Generate("switch:3,aggregate"))}) {
    const absl::Status status = node(0).control().survey().ApplyTopology(text, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("topology of the racks is refused"));
  }
  EXPECT_EQ(RefusedAt(0), 5u);
  EXPECT_EQ(node(0).control().survey().DescribeTopology().measured.topology, nullptr);
}

TEST_F(RackSurveyTest, ATopologyThatIsNoneIsRefusedByEveryRack) {
  Settle();
  Survey(Measured(1));
  const v1::PeerMessage open = OpenForRack1();
  std::uint64_t run = 1000;
  std::uint64_t refused = 0;
  for (const std::string& text :
       {std::string(), std::string("forged"), plan::TopologyToJson(*plan::Generate("switch:4")),
        plan::TopologyToJson(*plan::Generate("switch:3,aggregate"))}) {
    v1::PeerMessage forged = open;
    forged.mutable_open()->set_topology(text);
    Say(0, 1, ++run, forged);
    Settle();
    EXPECT_EQ(RefusedAt(1), ++refused) << text;
    EXPECT_EQ(StateAt(1, "forged"), "");
  }
  // The verifier rejects a plan that was made for another topology.
  v1::PeerMessage swapped = open;
  swapped.mutable_open()->set_topology(plan::TopologyToJson(*plan::Generate("ring:3")));
  Say(0, 1, ++run, swapped);
  Settle();
  EXPECT_EQ(StateAt(1, "forged"), "");
  EXPECT_EQ(node(1).Counter("phub_joins_refused_plan_total"), 1u);
}

TEST_F(RackSurveyTest, ADaemonWithATopologyOfItsOwnTakesNoneFromRack0) {
  Settle();
  Survey(Measured(1));
  const v1::PeerMessage open = OpenForRack1();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) Start(rack);
  Settle();
  Say(0, 1, 1000, open);
  Settle();
  EXPECT_EQ(StateAt(1, "forged"), "");
  EXPECT_EQ(RefusedAt(1), 1u);
  EXPECT_EQ(node(1).control().survey().ApplyTopology(TextOf(Measured(1)), 1).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(RackSurveyTest, WhoAsksForAJobDoesNotSayTheTopology) {
  Settle();
  Survey(Measured(1));
  v1::PeerMessage request = OpenForRack1();
  *request.mutable_request() = v1::PeerJob(request.open());
  request.mutable_request()->set_topology(TextOf(Measured(2)));
  request.mutable_request()->set_created_by(2);
  Say(1, 0, 0, request);
  Settle();
  EXPECT_EQ(ExchangeAt(0, "forged").measured_topology(), TextOf(Measured(1)));
}

TEST(HashOfRacks, IsOfTheWordWhereTheTopologyIsMeasured) {
  ControlOptions one;
  one.racks = {"a:1", "b:1", "c:1"};
  one.rack_topology = std::make_shared<const plan::Topology>(*plan::Generate("switch:3"));
  ControlOptions measured = one;
  measured.topology_is_measured = true;
  ControlOptions other = measured;
  other.rack_topology = std::make_shared<const plan::Topology>(*plan::Generate("ring:3"));
  EXPECT_EQ(HashOfRacks(measured, 1), HashOfRacks(other, 1));
  EXPECT_NE(HashOfRacks(measured, 1), HashOfRacks(one, 1));
}

}  // namespace
}  // namespace phub::server
