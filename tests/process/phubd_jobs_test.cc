// A daemon with a job whose workers are threads of this process: it idles, answers operators, and
// drains.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/idle.h"
#include "tests/support/eventually.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr DurationNs kPatience = 60 * kSecond;  // much longer than any step takes

// Rank `rank` of 2 of the job "digits", with the key "fc1.weight" of 1000 elements.
struct Worker {
  Worker(const std::string& endpoint, std::uint32_t rank) {
    auto session = Connect(endpoint);
    EXPECT_TRUE(session.ok()) << ToString(session.status());
    if (!session.ok()) return;
    auto joined = session->Join({.job = "digits", .rank = rank, .world_size = 2});
    EXPECT_TRUE(joined.ok()) << ToString(joined.status());
    if (!joined.ok()) return;
    job = std::move(*joined);
    auto added = job->AddKey("fc1.weight", f32, 1000, Sgd{.learning_rate = 1.0f});
    EXPECT_TRUE(added.ok()) << ToString(added.status());
    if (added.ok()) key = *added;
  }
  std::optional<Job> job;
  std::optional<Key> key;
};

struct TwoWorkers {
  explicit TwoWorkers(const DaemonProcess& daemon)
      : first(daemon.endpoint(), 0), second(daemon.endpoint(), 1) {}
  bool ready() const { return first.key && second.key; }
  // One round by both workers.
  Status Round() {
    Handle of_first = first.key->PushPull();
    Handle of_second = second.key->PushPull();
    if (Status status = of_first.Wait(std::chrono::nanoseconds(kPatience)); !status.ok())
      return status;
    return of_second.Wait(std::chrono::nanoseconds(kPatience));
  }
  Worker first;
  Worker second;
};

TEST(PhubdWithAJob, WaitsForRanksThatDoNotComeUntilJoinTimeout) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok()) << ToString(session.status());
  auto job = session->Join({.job = "digits",
                            .rank = 1,
                            .world_size = 3,
                            .join_timeout = std::chrono::milliseconds(1500)});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  auto key = job->AddKey("w", f32, 4, None{});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  const std::string listed = daemon.Ask({"job", "list"}).output;
  EXPECT_THAT(listed, ::testing::ContainsRegex("digits +waiting +1/3"));
  const Status status = job->Initialize(*key, std::vector<float>(4));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("ranks 0, 2 of 3 did not join within join_timeout"));
}

TEST(PhubdWithAJob, ShowsItsIterationInTheUsersNumbering) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(workers.Round().ok());
  EXPECT_THAT(daemon.Ask({"job", "list"}).output,
              ::testing::ContainsRegex("digits +running +2/2 +7 "));
  EXPECT_THAT(daemon.Ask({"job", "get", "digits"}).output,
              ::testing::ContainsRegex("iteration +7, .* each, the last .* ago"));
  EXPECT_THAT(daemon.Ask({"job", "get", "digits", "-o", "json"}).output,
              HasSubstr("\"iteration\": \"7\""));
}

TEST(PhubdWithAJob, IdlesWhileTheJobIdles) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  const Status round = workers.Round();
  ASSERT_TRUE(round.ok()) << ToString(round);
  EXPECT_TRUE(IsIdle(daemon.process()));
}

TEST(PhubdWithAJob, PhubctlShowsTheJobAndWhomItWaitsFor) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  const Status round = workers.Round();
  ASSERT_TRUE(round.ok()) << ToString(round);

  EXPECT_THAT(daemon.Ask({"job", "list"}).output,
              ::testing::ContainsRegex("default +digits +running +2/2 +1 +- +1 +3.91 KiB"));
  const Finished job = daemon.Ask({"job", "get", "digits"});
  EXPECT_EQ(job.exit, Exit::WithCode(0)) << job.error;
  EXPECT_THAT(job.output, ::testing::ContainsRegex("workers +2/2 live"));
  EXPECT_THAT(daemon.Ask({"stats"}).output, ::testing::ContainsRegex("phub_rounds_total .* 1\n"));
  const Finished none = daemon.Ask({"job", "stalls", "digits"});
  EXPECT_EQ(none.exit, Exit::WithCode(0));
  EXPECT_THAT(none.error, HasSubstr("no round or barrier of job digits is waiting for a rank"));

  // Rank 0 pushes, rank 1 does not.
  const Handle waiting = workers.first.key->PushPull();
  Sleep(300 * kMillisecond);
  const Finished stalls = daemon.Ask({"job", "stalls", "digits", "--longer-than", "100ms"});
  EXPECT_EQ(stalls.exit, Exit::WithCode(0)) << stalls.error;
  EXPECT_THAT(stalls.output,
              ::testing::ContainsRegex("KEY +ITERATION +WAITING FOR +SINCE +LAST SEEN\n"
                                       "fc1.weight +2 +rank 1 \\(.*\\) +[0-9.]+ m?s  "
                                       "heartbeat .* ago, lane (tcp 127.0.0.1|shm pid)"));
  EXPECT_THAT(daemon.Ask({"job", "stalls", "digits", "-o", "json"}).output,
              HasSubstr("\"key\": \"fc1.weight\""));
  Handle completing = workers.second.key->PushPull();
  EXPECT_TRUE(completing.Wait(std::chrono::nanoseconds(kPatience)).ok());
  EXPECT_TRUE(waiting.Wait(std::chrono::nanoseconds(kPatience)).ok());
}

TEST(PhubdWithAJob, RanksThatMissABarrierAreNamed) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  Job& first = *workers.first.job;
  Job& second = *workers.second.job;
  EXPECT_TRUE(first.ExplainBarrier().ok());
  std::thread waiting([&] { EXPECT_TRUE(first.Barrier().ok()); });
  EXPECT_TRUE(Eventually([&] { return !first.ExplainBarrier().ok(); }));
  EXPECT_EQ(first.ExplainBarrier().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(first.ExplainBarrier().message(),
            "rank 0 of job digits waits in a barrier; it waits for rank 1");
  EXPECT_TRUE(second.ExplainBarrier().ok());
  const Finished stalls = daemon.Ask({"job", "stalls", "digits"});
  EXPECT_THAT(stalls.output, ::testing::ContainsRegex(
                                 "barrier 0 +- +rank 1 +[0-9.]+ [mu]?s +rank 0 has called it"));
  EXPECT_EQ(stalls.error, "");

  const Handle pushed = workers.second.key->PushPull();  // rank 0 has not reached it
  EXPECT_TRUE(Eventually([&] { return !pushed.Explain().message().ends_with("in flight"); }));
  EXPECT_THAT(first.ExplainBarrier().message(),
              HasSubstr("ranks wait for each other: rank 0 has reached barrier 0, which waits for "
                        "rank 1; rank 1 has pushed key fc1.weight, which waits for rank 0"));
  EXPECT_TRUE(second.Barrier().ok());
  waiting.join();
  EXPECT_TRUE(first.ExplainBarrier().ok());
  const Handle completing = workers.first.key->PushPull();
  EXPECT_TRUE(completing.Wait(std::chrono::nanoseconds(kPatience)).ok());
}

TEST(PhubdDrain, WaitsForJobsToEndAndThenLeaves) {
  DaemonProcess daemon({"--drain-timeout", "1h"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  daemon.process().Signal(SIGTERM);
  ASSERT_TRUE(daemon.process().WaitForOutput("event=draining", kPatience));

  // The daemon continues to serve the running job, refuses another one, and reports that.
  const Status round = workers.Round();
  EXPECT_TRUE(round.ok()) << ToString(round);
  const Finished health = daemon.Ask({"health"});
  EXPECT_EQ(health.exit, Exit::WithCode(1));
  EXPECT_EQ(health.output, "not serving\n");
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok()) << ToString(session.status());
  const auto refused = session->Join({.job = "another", .rank = 0, .world_size = 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("drain"));
  EXPECT_TRUE(daemon.process().IsRunning());

  EXPECT_TRUE(workers.first.job->Leave().ok());
  EXPECT_TRUE(workers.second.job->Leave().ok());
  EXPECT_EQ(daemon.process().Wait(5 * kSecond), Exit::WithCode(0)) << daemon.process().Outputs();
}

TEST(PhubdDrain, JobsThatDoNotEndAreEndedWithAReason) {
  DaemonProcess daemon({"--drain-timeout", "300ms"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  const Handle waiting = workers.first.key->PushPull();  // rank 1 does not push
  daemon.process().Signal(SIGTERM);
  const Status ended = waiting.Wait(std::chrono::nanoseconds(kPatience));
  EXPECT_EQ(ended.code(), StatusCode::kAborted) << ToString(ended);
  EXPECT_THAT(ended.message(), HasSubstr("digits"));
  EXPECT_THAT(ended.message(),
              HasSubstr("phubd is shutting down and the job did not finish in time"));
  EXPECT_EQ(daemon.process().Wait(kPatience), Exit::WithCode(0)) << daemon.process().Outputs();
}

TEST(PhubdDrain, ASecondSignalEndsItAtOnceWithOne) {
  DaemonProcess daemon({"--drain-timeout", "1h"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  TwoWorkers workers(daemon);
  ASSERT_TRUE(workers.ready());
  daemon.process().Signal(SIGTERM);
  ASSERT_TRUE(daemon.process().WaitForOutput("event=draining", kPatience));
  EXPECT_FALSE(daemon.process().Wait(200 * kMillisecond).has_value());
  daemon.process().Signal(SIGINT);
  EXPECT_EQ(daemon.process().Wait(kSecond), Exit::WithCode(1)) << daemon.process().Outputs();
  EXPECT_THAT(daemon.process().StandardError(), HasSubstr("event=stopped_at_once"));
}

}  // namespace
}  // namespace phub::process
