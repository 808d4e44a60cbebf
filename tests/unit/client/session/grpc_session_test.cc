// Sessions over real gRPC. Debian's gRPC is not instrumented for the thread sanitizer, so
// job_test.cc and job_failure_test.cc test threads and failures without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "phub/client.h"
#include "tests/unit/client/session/grpc_fake_daemon.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// On a busy machine. Without the error, the calls would wait without an end.
constexpr std::chrono::seconds kInTime{30};

class GrpcSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto session = Connect("phub://" + daemon_.endpoint());
    ASSERT_TRUE(session.ok()) << ToString(session.status());
    auto job = session->Join({.job = "digits"});
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    job_.emplace(*std::move(job));  // outlives its session
    auto key = job_->AddKey("w", f32, 300, None{});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    key_.emplace(*key);
  }
  GrpcFakeDaemon daemon_{{.liveness_timeout = 400 * kMillisecond}};
  std::optional<Job> job_;
  std::optional<Key> key_;
};

TEST_F(GrpcSessionTest, RoundsBarriersAndLeaving) {
  const std::vector<float> initial(300, 1.5f);
  ASSERT_TRUE(job_->Initialize(*key_, initial).ok());
  EXPECT_THAT(key_->parameters<float>(), Each(1.5f));
  EXPECT_TRUE(job_->Barrier().ok());
  // Longer than the liveness timeout: heartbeats keep the session alive.
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_TRUE(key_->PushPull().Wait().ok());
  EXPECT_TRUE(job_->Leave().ok());
  EXPECT_EQ(daemon_.daemon().left_count(), 1);
}

TEST_F(GrpcSessionTest, VerdictArrivesOverTheStreamAndEndsABarrier) {
  daemon_.daemon().HoldBarrier(true);
  std::thread judge([this] {
    std::this_thread::sleep_for(milliseconds(30));
    v1::Fault fault;
    fault.set_message("rank 2 on node5 died 1.3 s ago (job digits)");
    daemon_.daemon().GiveVerdict(fault);
  });
  EXPECT_EQ(job_->Barrier().code(), StatusCode::kAborted);
  judge.join();
}

TEST_F(GrpcSessionTest, DeadDaemonIsNamedInTime) {
  daemon_.daemon().HoldReplies(true);
  const Handle handle = key_->PushPull();
  const auto start = steady_clock::now();
  daemon_.Die();
  const Status status = handle.Wait();
  EXPECT_LT(steady_clock::now() - start, kInTime);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(daemon_.endpoint()), HasSubstr("died or is unreachable")));
}

// gRPC 1.51 aborts if a callback's own thread drops the last reference to a channel.
TEST(GrpcSession, ManyShortSessionsEndCleanly) {
  GrpcFakeDaemon daemon;
  daemon.daemon().RefuseJoin(absl::InternalError("no"));
  for (int i = 0; i < 100; ++i) {
    auto session = Connect(daemon.endpoint());
    ASSERT_TRUE(session.ok());
    EXPECT_EQ(session->Join({.job = "digits"}).status().code(), StatusCode::kInternal);
  }
}

TEST(GrpcSession, CallPastItsDeadlineSaysWhichDaemonDidNotAnswer) {
  // Listens, but never answers.
  GrpcFakeDaemon daemon;
  auto session = Connect(daemon.endpoint(), {.call_timeout = milliseconds(100)});
  ASSERT_TRUE(session.ok());
  daemon.daemon().StallJoin(milliseconds(400));
  const auto job = session->Join({.job = "digits"});
  EXPECT_EQ(job.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(job.status().message(), HasSubstr(daemon.endpoint()));
}

TEST(Connect, NobodyThereIsUnavailableInTime) {
  const auto start = steady_clock::now();
  // Port 1 is reserved, and no process listens there.
  const auto session = Connect("127.0.0.1:1", {.connect_timeout = milliseconds(150)});
  EXPECT_LT(steady_clock::now() - start, kInTime);
  EXPECT_EQ(session.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(session.status().message(), HasSubstr("127.0.0.1:1"));
}

TEST(Connect, WrongEndpointIsRefused) {
  EXPECT_EQ(Connect("rack7").status().code(), StatusCode::kInvalidArgument);
}

TEST(Join, RefusalOfTheDaemonIsPassedOnWordByWord) {
  GrpcFakeDaemon daemon;
  daemon.daemon().RefuseJoin(absl::AlreadyExistsError("rank 1 of job digits is held by node5"));
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  const auto job = session->Join({.job = "digits", .rank = 1, .world_size = 2});
  EXPECT_EQ(job.status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(job.status().message(), "rank 1 of job digits is held by node5");
}

TEST(Join, WrongOptionsAreRefusedWithoutAskingTheDaemon) {
  GrpcFakeDaemon daemon;
  daemon.daemon().RefuseJoin(absl::InternalError("asked"));
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  const JobOptions wrong[] = {{.job = ""},
                              {.job = "j", .rank = 2, .world_size = 2},
                              {.job = "j", .world_size = 0},
                              {.job = "j", .world_size = 5000},
                              {.job = "j", .chunk_bytes = 1000},
                              {.job = "j", .leave_timeout = milliseconds(-1)}};
  for (const JobOptions& options : wrong)
    EXPECT_EQ(session->Join(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace phub::client
