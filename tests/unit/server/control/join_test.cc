#include <functional>
#include <limits>

#include "server/control/jobs/job_options.h"
#include "server/control/jobs/sum_options.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class JoinTest : public ControlTest {};

TEST_F(JoinTest, FirstRankCreatesTheJobAndIsAnsweredOnceEveryCoreAcknowledged) {
  const auto call = Join(JoinOf(1, 2));
  // Expect: no answer before both core loops have the job.
  EXPECT_FALSE(call->answered());
  cores[0]->Run();
  control().Poll();
  EXPECT_FALSE(call->answered());
  cores[1]->Run();
  control().Poll();
  ASSERT_TRUE(call->ok()) << call->message();
  const v1::JoinResponse& response = call->response;
  EXPECT_TRUE(response.created());
  EXPECT_EQ(response.session_id().size(), 16u);
  EXPECT_NE(response.incarnation(), 0u);
  EXPECT_EQ(response.chunk_bytes(), 1024u);
  EXPECT_EQ(response.slots_per_lane(), 4u);
  EXPECT_EQ(response.liveness_timeout_ns(), 2 * kSecond);
  EXPECT_EQ(response.protocol_version(), 1u);
  ASSERT_EQ(response.cores_size(), 2);
  EXPECT_EQ(response.cores(1).core(), 1u);
  EXPECT_EQ(response.cores(1).port(), 7701u);
  EXPECT_EQ(cores[0]->Executed(Command::Kind::kAddJob).size(), 1u);
  EXPECT_GT(cores[0]->wakes, 0);
  EXPECT_GT(control().memory_bytes(), 0u);
}

TEST_F(JoinTest, OtherRanksJoinTheSameRun) {
  Enter(1, 2);
  const auto first = last_join;
  Enter(0, 2);
  EXPECT_FALSE(last_join.created());
  EXPECT_EQ(last_join.incarnation(), first.incarnation());
  EXPECT_NE(last_join.session_id(), first.session_id());
  EXPECT_EQ(control().job_count(), 1u);
}

TEST_F(JoinTest, DefaultsFillInWhatTheJobDoesNotSay) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.mutable_options()->clear_chunk_bytes();
  request.mutable_options()->clear_staging_bytes_per_lane();
  const auto call = Join(request);
  Settle();
  ASSERT_TRUE(call->ok());
  EXPECT_EQ(call->response.chunk_bytes(), 128u * 1024);
  EXPECT_EQ(call->response.slots_per_lane(), 8u);
}

TEST_F(JoinTest, SlotsAreWithinTheirLimits) {
  v1::JoinRequest request = JoinOf(0, 1, "few");
  request.mutable_options()->set_staging_bytes_per_lane(1);
  const auto few = Join(request);
  request = JoinOf(0, 1, "many");
  request.mutable_options()->set_chunk_bytes(256);
  request.mutable_options()->set_staging_bytes_per_lane(16 << 20);
  const auto many = Join(request);
  Settle();
  ASSERT_TRUE(few->ok() && many->ok()) << many->message();
  EXPECT_EQ(few->response.slots_per_lane(), 1u);
  EXPECT_EQ(many->response.slots_per_lane(), kSlotsPerLaneMax);
}

TEST_F(JoinTest, DifferentOptionsAreRefusedNamingBothRanksAndWhatDiffers) {
  Enter(0, 3);
  v1::JoinRequest request = JoinOf(2, 3);
  request.mutable_options()->set_chunk_bytes(2048);
  const auto chunks = Join(request);
  EXPECT_EQ(chunks->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(chunks->message(), AllOf(HasSubstr("rank 2 (node2)"), HasSubstr("rank 0 (node0)"),
                                       HasSubstr("chunk_bytes 2048"), HasSubstr("1024")));
  const auto world = Join(JoinOf(2, 4));
  EXPECT_THAT(world->message(), AllOf(HasSubstr("world_size 4"), HasSubstr("with 3")));
  request = JoinOf(2, 3);
  request.mutable_options()->set_staging_bytes_per_lane(8192);
  EXPECT_THAT(Join(request)->message(), HasSubstr("staging_bytes_per_lane 8192"));
  request = JoinOf(2, 3);
  request.mutable_options()->set_screening(v1::SCREENING_REJECT);
  EXPECT_THAT(Join(request)->message(),
              AllOf(HasSubstr("screening reject"), HasSubstr("with report")));
  request.mutable_options()->set_screening(v1::SCREENING_REPORT);
  request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
  EXPECT_THAT(Join(request)->message(), AllOf(HasSubstr("on_loss wait"), HasSubstr("with fail")));
  request.mutable_options()->set_on_loss(v1::LOSS_POLICY_FAIL);
  request.mutable_options()->set_apply(v1::APPLY_ITERATION);
  EXPECT_THAT(Join(request)->message(),
              AllOf(HasSubstr("apply iteration"), HasSubstr("with chunk")));
  EXPECT_EQ(Counter("phub_joins_refused_options_total"), 6u);
  // Expect: the job continues, and a rank with the right options is admitted.
  Enter(2, 3);
}

TEST_F(JoinTest, ALiveRanksPlaceIsRefusedNamingTheHolder) {
  Enter(0, 2);
  v1::JoinRequest request = JoinOf(0, 2);
  request.set_host("intruder");
  const auto call = Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 0"), HasSubstr("digits"), HasSubstr("node0"),
                                     HasSubstr("4700")));
}

TEST_F(JoinTest, VersionsThatDoNotMeetAreRefusedByName) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.set_protocol_version_min(2);
  request.set_protocol_version_max(3);
  const auto call = Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), HasSubstr("phubd 0.1.0 supports control protocol versions 1..1, but "
                                         "this client 0.1.0 supports 2..3"));
  EXPECT_EQ(control().job_count(), 0u);
  // A client is served if its range of protocol versions includes the daemon's.
  request.set_protocol_version_min(0);
  const auto wide = Join(request);
  Settle();
  EXPECT_TRUE(wide->ok());
}

TEST_F(JoinTest, WhatIsDecidedAboutIterationsIsAgreedOnByAllRanks) {
  v1::JoinRequest request = JoinOf(0, 2);
  request.mutable_options()->set_apply(v1::APPLY_ITERATION);
  request.mutable_options()->set_clip_norm(1.5);
  const auto first = Join(request);
  Settle();
  ASSERT_TRUE(first->ok()) << first->message();
  EXPECT_EQ(first->response.apply(), v1::APPLY_ITERATION);
  request.set_rank(1);
  request.mutable_options()->set_clip_norm(2.5);
  EXPECT_THAT(Join(request)->message(), AllOf(HasSubstr("clip_norm 2.5"), HasSubstr("with 1.5")));
  request.mutable_options()->set_clip_norm(1.5);
  request.mutable_options()->set_skip_nonfinite(true);
  EXPECT_THAT(Join(request)->message(), HasSubstr("skip_nonfinite=true"));
}

TEST_F(JoinTest, BadRequestsAreRefusedAndChangeNothing) {
  const auto refused = [&](const std::function<void(v1::JoinRequest&)>& spoil) {
    v1::JoinRequest request = JoinOf(0, 2);
    spoil(request);
    const auto call = Join(request);
    EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument) << call->message();
    return call->message();
  };
  EXPECT_THAT(refused([](auto& r) { r.set_job(""); }), HasSubstr("job name"));
  EXPECT_THAT(refused([](auto& r) { r.set_job(std::string(256, 'a')); }), HasSubstr("255"));
  refused([](auto& r) { r.set_job("two\nlines"); });
  refused([](auto& r) { r.set_host("\x1b[31mred"); });
  EXPECT_THAT(refused([](auto& r) { r.set_rank(2); }), HasSubstr("outside world_size 2"));
  refused([](auto& r) { r.mutable_options()->set_world_size(0); });
  refused([](auto& r) { r.mutable_options()->set_world_size(kRanksMax + 1); });
  EXPECT_THAT(refused([](auto& r) { r.mutable_options()->set_chunk_bytes(1000); }),
              HasSubstr("multiple of 64"));
  refused([](auto& r) { r.mutable_options()->set_chunk_bytes(64); });
  refused([](auto& r) { r.mutable_options()->set_chunk_bytes(kChunkBytesMax + 64); });
  refused([](auto& r) { r.mutable_options()->set_on_loss(static_cast<v1::LossPolicy>(9)); });
  refused([](auto& r) { r.mutable_options()->set_screening(static_cast<v1::Screening>(9)); });
  refused([](auto& r) { r.mutable_options()->set_apply(static_cast<v1::Apply>(9)); });
  EXPECT_THAT(refused([](auto& r) { r.mutable_options()->set_clip_norm(1.0); }),
              HasSubstr("need apply=iteration"));
  refused([](auto& r) {
    r.mutable_options()->set_apply(v1::APPLY_ITERATION);
    r.mutable_options()->set_clip_norm(std::numeric_limits<double>::infinity());
  });
  EXPECT_THAT(refused([](auto& r) {
                r.mutable_options()->set_apply(v1::APPLY_ITERATION);
                r.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
                r.mutable_options()->set_restart(true);
              }),
              HasSubstr("restart=true"));
  EXPECT_EQ(Counter("phub_joins_refused_invalid_total"), 16u);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(control().job_count(), 0u);
}

TEST_F(JoinTest, UnknownTenantsAreRefusedAndTheDefaultOneIsThere) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.set_tenant("acme");
  const auto call = Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(call->message(), HasSubstr("acme"));
  request.set_tenant("default");
  const auto named = Join(request);
  Settle();
  EXPECT_TRUE(named->ok());
}

TEST_F(JoinTest, MemoryThatIsNotThereIsRefusedWithTheShortfall) {
  options.memory_bytes_max = 100'000;
  v1::JoinRequest request = JoinOf(0, 1);
  request.mutable_options()->set_staging_bytes_per_lane(1 << 20);
  const auto call = Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call->message(),
              AllOf(HasSubstr("digits"), HasSubstr("too much"), HasSubstr("97.7 KiB")));
  EXPECT_EQ(control().memory_bytes(), 0u);
  // Expect: a smaller job fits.
  Enter(0, 1);
}

TEST_F(JoinTest, JobsAreLimited) {
  options.jobs_max = 1;
  Enter(0, 1, "one");
  const auto call = Join(JoinOf(0, 1, "two"));
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call->message(), HasSubstr("two"));
}

TEST_F(JoinTest, ACoreThatIsFarBehindRefusesNewJobs) {
  options.backlog_max = 10;
  options.memory_bytes_max = std::uint64_t{1} << 32;
  control();
  cores[0]->stopped = true;
  int created = 0;
  CallPtr<v1::JoinResponse> call;
  for (int i = 0; i < 2000 && (call == nullptr || !call->answered()); ++i) {
    v1::JoinRequest request = JoinOf(0, 1, "job" + std::to_string(i));
    options.jobs_max = 5000;
    call = Join(request);
    ++created;
  }
  // Expect: the queue (1024) and then the backlog fill up, or the limit on jobs is reached first.
  EXPECT_TRUE(call->answered());
  EXPECT_LE(created, 1024 + 10 + 1);
  // The backlog drains in order once the core runs again.
  cores[0]->stopped = false;
  Settle();
  EXPECT_EQ(cores[0]->Executed(Command::Kind::kAddJob).size(),
            static_cast<std::size_t>(created - 1));
}

TEST_F(JoinTest, ANameWhoseJobFailedStartsANewRunWhileTheOldOneIsTornDown) {
  const std::vector<std::string> old = EnterAll(2);
  const v1::JoinResponse before = last_join;
  Advance(options.liveness_timeout);
  ASSERT_NE(FaultAt(old[0]), nullptr);
  const std::size_t jobs_now = control().job_count();
  EXPECT_EQ(jobs_now, 1u);  // still being torn down
  Enter(0, 2);
  EXPECT_TRUE(last_join.created());
  EXPECT_NE(last_join.incarnation(), before.incarnation());
  EXPECT_EQ(control().job_count(), 2u);
  Advance(options.teardown_delay);
  EXPECT_EQ(control().job_count(), 1u);
  // Expect: the old session receives the outcome of its own job, not of the new one.
  const auto late = Barrier(old[0], 0);
  EXPECT_EQ(late->code(), absl::StatusCode::kAborted);
}

TEST_F(JoinTest, ANameWhoseJobEndedStartsANewRun) {
  const std::string session = Enter(0, 1);
  const v1::JoinResponse before = last_join;
  Leave(session);
  Settle();
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
  Enter(0, 1);
  EXPECT_NE(last_join.incarnation(), before.incarnation());
}

TEST_F(JoinTest, ARankThatLeftCannotComeBackIntoTheSameRun) {
  const std::vector<std::string> sessions = EnterAll(2);
  Leave(sessions[1]);
  Settle();
  const auto call = Join(JoinOf(1, 2));
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 1"), HasSubstr("has left")));
}

TEST(SumOptions, OfJobsThatCannotSumInFixedPointAreRefusedWithAdvice) {
  const auto refusal = [](const std::function<void(v1::JobOptions&, JobSettings&)>& change) {
    v1::JobOptions options;
    options.set_sum(v1::SUM_FIXED);
    JobSettings settings;
    change(options, settings);
    return std::string(ReadSumOptions("digits", options, settings).message());
  };
  EXPECT_EQ(refusal([](auto& /*options*/, auto& settings) { settings.world_size = 254; }), "");
  EXPECT_THAT(refusal([](auto& /*options*/, auto& settings) { settings.world_size = 255; }),
              AllOf(HasSubstr("at most 254 ranks"), HasSubstr("world_size is 255")));
  EXPECT_THAT(refusal([](auto& /*options*/, auto& settings) { settings.plan = "ring"; }),
              AllOf(HasSubstr("span racks"), HasSubstr("use sum=float")));
  for (const std::uint32_t block : {1u, 15u, 849u}) {
    EXPECT_THAT(refusal([&](auto& options, auto& /*settings*/) { options.set_sum_block(block); }),
                HasSubstr("it must be 16 to 848"));
  }
  EXPECT_THAT(refusal([](auto& options, auto& /*settings*/) {
                options.set_sum(v1::SUM_FLOAT);
                options.set_sum_block(350);
              }),
              HasSubstr("only sum=fixed has blocks"));
  EXPECT_THAT(
      refusal([](auto& options, auto& /*settings*/) { options.set_sum(static_cast<v1::Sum>(7)); }),
      HasSubstr("unknown value 7"));
  v1::JobOptions options;
  options.set_sum(v1::SUM_FIXED);
  JobSettings settings;
  EXPECT_TRUE(ReadSumOptions("digits", options, settings).ok());
  EXPECT_EQ(settings.sum_block, 350u);
}

TEST_F(JoinTest, ATenantThatRequiresEncryptionCannotSumInFixedPoint) {
  control().tenants().SetTenant({.name = "default", .encryption_required = true});
  v1::JoinRequest request = JoinOf(0, 1);
  request.mutable_options()->set_sum(v1::SUM_FIXED);
  const auto call = Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("requires encryption"), HasSubstr("sum=float")));
  Enter(0, 1);
  EXPECT_EQ(last_join.sum(), v1::SUM_FLOAT);
}

TEST(DifferenceInSettings, OfPlansInJsonIsTheirFirstDifference) {
  JobSettings ours, theirs;
  ours.plan = R"({"format": "phub.plan.v1", "trees": [{"home": "m0", "fraction": "1/2"}]})";
  theirs.plan = R"({"format": "phub.plan.v1", "trees": [{"home": "m1", "fraction": "1/2"}]})";
  const std::string difference = DifferenceInSettings(theirs, ours, "rank 0 (node0)");
  EXPECT_THAT(difference,
              AllOf(HasSubstr("plan in JSON (72 bytes) with '"), HasSubstr(R"("home": "m1")"),
                    HasSubstr("rank 0 (node0) created"), HasSubstr(R"("home": "m0")")));
  theirs.plan = "ring";
  EXPECT_EQ(DifferenceInSettings(theirs, ours, "rank 0 (node0)"),
            "plan ring, but rank 0 (node0) created it with in JSON (72 bytes)");
  theirs.plan = ours.plan + " ";
  EXPECT_THAT(DifferenceInSettings(theirs, ours, "rank 0"), HasSubstr("in JSON (73 bytes)"));
}

}  // namespace
}  // namespace phub::server
