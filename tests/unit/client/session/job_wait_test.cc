// Policy wait: broken lanes and streams come back, and the job ends if they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr milliseconds kLivenessTimeout{300};

class JobWaitTest : public ::testing::Test {
 protected:
  void Join(milliseconds wait_timeout) {
    auto job =
        rack_.Join({.job = "digits", .on_loss = LossPolicy::kWait, .wait_timeout = wait_timeout});
    job_.emplace(*std::move(job));
    auto key = job_->AddKey("w", f32, 1000, None{});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    key_.emplace(*key);
    std::fill_n(key_->gradients<float>().begin(), 1000, 3.0f);
  }
  Handle PushHeld() {
    rack_[1].HoldReplies(true);
    const Handle handle = key_->PushPull();
    while (rack_[1].gradient_count() == 0) std::this_thread::yield();
    return handle;
  }
  FakeRack rack_{{2, 2}, {.liveness_timeout = kLivenessTimeout.count() * kMillisecond}};
  std::optional<Job> job_;
  std::optional<Key> key_;
};

TEST_F(JobWaitTest, LostLanesAreOpenedAgainAndTheRoundCompletes) {
  Join(milliseconds(10'000));
  const Handle handle = PushHeld();
  rack_[1].CloseLanes();
  while (rack_[1].lane_count() < 4) std::this_thread::sleep_for(milliseconds(1));
  rack_[1].HoldReplies(false);
  const Status status = handle.Wait();
  ASSERT_TRUE(status.ok()) << ToString(status);
  EXPECT_THAT(key_->parameters<float>(), Each(3.0f));
  EXPECT_TRUE(key_->PushPull().Wait().ok());
  EXPECT_EQ(rack_[0].lane_count(), 2);  // they were not lost
}

TEST_F(JobWaitTest, RefusedLanesAreAskedForAgain) {
  Join(milliseconds(10'000));
  const Handle handle = PushHeld();
  rack_[1].RefuseOpenLanes(absl::UnavailableError("not now"));
  rack_[1].CloseLanes();
  std::this_thread::sleep_for(2 * kLivenessTimeout);
  EXPECT_FALSE(handle.Test());
  rack_[1].RefuseOpenLanes(absl::OkStatus());
  rack_[1].HoldReplies(false);
  EXPECT_TRUE(handle.Wait().ok());
}

// The lane cannot be opened again meanwhile. Another lane shows that the daemon is alive.
TEST_F(JobWaitTest, AnOutageOfControlUsesUpNoWaitTimeout) {
  Join(milliseconds(500));
  const Handle handle = PushHeld();
  rack_[1].HideCalls(true);
  rack_[1].RefuseStreams(absl::UnavailableError("Connection refused"));
  rack_[1].BreakStream(absl::UnavailableError("Socket closed"));
  rack_[1].CloseOneLane();
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_TRUE(job_->status().ok()) << ToString(job_->status());
  rack_[1].RefuseStreams(absl::OkStatus());
  rack_[1].HideCalls(false);
  rack_[1].HoldReplies(false);
  const Status status = handle.Wait();
  EXPECT_TRUE(status.ok()) << ToString(status);
}

// No lane shows that the daemon is alive, but it proves that when it answers again.
TEST_F(JobWaitTest, AnOutageWithoutLanesCountsNoMoreOnceTheDaemonAnswers) {
  Join(milliseconds(2'000));
  const Handle handle = PushHeld();
  rack_[1].HideCalls(true);
  rack_[1].RefuseStreams(absl::UnavailableError("Connection refused"));
  rack_[1].BreakStream(absl::UnavailableError("Socket closed"));
  rack_[1].CloseLanes();
  std::this_thread::sleep_for(milliseconds(600));
  // Expect: the lanes have the whole wait_timeout to come back.
  rack_[1].RefuseOpenLanes(absl::UnavailableError("not now"));
  const auto start = steady_clock::now();
  rack_[1].RefuseStreams(absl::OkStatus());
  rack_[1].HideCalls(false);
  const Status status = handle.Wait();
  EXPECT_GT(steady_clock::now() - start, milliseconds(1'900));
  EXPECT_THAT(status.message(), HasSubstr("did not recover within 2.0 s"));
}

TEST_F(JobWaitTest, LaneThatDoesNotComeBackEndsTheJobAfterTheTimeout) {
  Join(milliseconds(700));
  const Handle handle = PushHeld();
  rack_[1].RefuseOpenLanes(absl::UnavailableError("not now"));
  const auto start = steady_clock::now();
  rack_[1].CloseLanes();
  const Status status = handle.Wait();
  EXPECT_GT(steady_clock::now() - start, milliseconds(650));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("127.0.0.1:7701"), HasSubstr("lane to core"),
                                      ContainsRegex("did not recover within [0-9.]+ m?s")));
}

TEST_F(JobWaitTest, BrokenStreamIsAttachedAgain) {
  Join(milliseconds(10'000));
  rack_[0].BreakStream(absl::UnavailableError("Socket closed"));
  while (rack_[0].attended_count() < 2) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(2 * kLivenessTimeout);
  EXPECT_TRUE(job_->status().ok()) << ToString(job_->status());
  EXPECT_TRUE(key_->PushPull().Wait().ok());
  EXPECT_EQ(rack_[1].attended_count(), 1);
}

TEST_F(JobWaitTest, SilentDaemonGetsANewConnectionAndABarrierGoesOn) {
  Join(milliseconds(10'000));
  rack_[0].HoldBarrier(true);
  Status met;
  std::thread caller([&] { met = job_->Barrier(); });
  rack_[0].StickControl();
  while (rack_[0].reconnect_count() == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(job_->status().ok());
  rack_[0].AnswerHeartbeats(true);
  rack_[0].HoldBarrier(false);
  caller.join();
  EXPECT_TRUE(met.ok()) << ToString(met);
  EXPECT_EQ(rack_[0].barriers().back(), 0u);  // the same barrier
  std::this_thread::sleep_for(2 * kLivenessTimeout);
  EXPECT_TRUE(job_->status().ok()) << ToString(job_->status());
}

TEST_F(JobWaitTest, DaemonThatForgotTheSessionEndsTheJobAtOnce) {
  Join(milliseconds(60'000));
  const Handle handle = PushHeld();
  rack_[1].ForgetSession();
  rack_[1].BreakStream(absl::UnavailableError("Socket closed"));
  const Status status = handle.Wait();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("127.0.0.1:7701"), HasSubstr("was restarted")));
}

TEST_F(JobWaitTest, DaemonThatStaysDeadEndsTheJobAfterTheTimeout) {
  Join(milliseconds(600));
  const Handle handle = PushHeld();
  const auto start = steady_clock::now();
  rack_[1].Die();
  const Status status = handle.Wait();
  EXPECT_GT(steady_clock::now() - start, milliseconds(550));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("127.0.0.1:7701"),
                                      ContainsRegex("did not recover within [0-9.]+ m?s")));
  EXPECT_EQ(job_->Leave().code(), StatusCode::kUnavailable);
}

TEST_F(JobWaitTest, VerdictOfADaemonEndsTheJobUnderThisPolicyToo) {
  Join(milliseconds(60'000));
  const Handle handle = PushHeld();
  v1::Fault fault;
  fault.set_message("rank 2 on node5 did not come back in 60.0 s (job digits)");
  rack_[1].GiveVerdict(fault);
  EXPECT_THAT(handle.Wait().message(), HasSubstr("rank 2 on node5"));
}

}  // namespace
}  // namespace phub::client
