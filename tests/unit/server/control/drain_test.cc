#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class DrainTest : public ControlTest {
 protected:
  CallPtr<v1::ServerInfo> DrainFor(DurationNs deadline) {
    v1::DrainServerRequest request;
    request.set_deadline_ns(deadline);
    return DrainServer(request);
  }
  CallPtr<v1::JobInfo> Evict(const std::string& job, const std::string& reason) {
    v1::EvictJobRequest request;
    request.set_job(job);
    request.set_reason(reason);
    return EvictJob(request);
  }
  void BeatFor(const std::string& session, DurationNs duration) {
    for (const TimeNs end = clock.now + duration; clock.now < end;) {
      Heartbeat(session);
      Advance(std::min(kSecond / 2, end - clock.now));
    }
  }
};

TEST_F(DrainTest, NewJobsAreRefusedAndWhatIsLeftFailsByName) {
  const std::string session = Enter(0, 1);
  const auto drained = DrainFor(5 * kSecond);
  ASSERT_TRUE(drained->ok());
  EXPECT_EQ(drained->response.state(), "draining");
  EXPECT_EQ(drained->response.drain_deadline_ns(), 5 * kSecond);
  EXPECT_EQ(sinks[session]->events.back().draining().deadline_ns(), 5 * kSecond);
  BeatFor(session, kSecond);
  const auto refused = Join(JoinOf(0, 1, "fresh"));
  EXPECT_EQ(refused->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused->message(), HasSubstr("running jobs may continue for 4.0 s"));
  BeatFor(session, 5 * kSecond);
  ASSERT_NE(FaultAt(session), nullptr);
  EXPECT_EQ(FaultAt(session)->code(), "daemon_draining");
}

TEST_F(DrainTest, UndrainWelcomesJobsAgainUnlessTheDaemonStops) {
  const std::string session = Enter(0, 1);
  ASSERT_TRUE(DrainFor(kSecond)->ok());
  const auto serving = UndrainServer({});
  ASSERT_TRUE(serving->ok());
  EXPECT_EQ(serving->response.state(), "serving");
  EXPECT_TRUE(sinks[session]->events.back().draining().over());
  BeatFor(session, 3 * kSecond);
  EXPECT_EQ(FaultAt(session), nullptr);
  Enter(0, 1, "fresh");
  control().draining().Drain(kSecond);
  EXPECT_EQ(UndrainServer({})->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DrainFor(kSecond)->code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DrainTest, DeadlinesHaveADefaultAndBounds) {
  EXPECT_EQ(DrainFor(0)->response.drain_deadline_ns(), options.drain_timeout);
  EXPECT_EQ(DrainFor(-1)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DrainFor(INT64_MAX)->code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DrainTest, AnEvictedJobsWorkersHearWhyAndTheAnswerComesWithTheMemory) {
  const std::string session = Enter(0, 1);
  const auto evicted = Evict("digits", "too hungry");
  EXPECT_FALSE(evicted->answered());
  ASSERT_NE(FaultAt(session), nullptr);
  EXPECT_EQ(FaultAt(session)->message(),
            "job digits failed: evicted by administrator: too hungry (evicted)");
  Advance(options.teardown_delay);
  ASSERT_TRUE(evicted->ok()) << evicted->message();
  EXPECT_EQ(evicted->response.state(), "failed");
  EXPECT_EQ(evicted->response.memory_bytes(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(DrainTest, EvictionsThatMakeNoSenseAreRefused) {
  EXPECT_EQ(Evict("digits", "")->code(), absl::StatusCode::kNotFound);
  Enter(0, 1);
  EXPECT_EQ(Evict("digits", "two\nlines")->code(), absl::StatusCode::kInvalidArgument);
  const auto evicted = Evict("digits", "");
  EXPECT_EQ(Evict("digits", "")->code(), absl::StatusCode::kFailedPrecondition);
  Advance(options.teardown_delay);
  EXPECT_TRUE(evicted->ok());
}

}  // namespace
}  // namespace phub::server
