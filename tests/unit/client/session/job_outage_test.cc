// Control that cannot be reached while the daemon lives: calls wait, are repeated, and have the
// same effect as one call.
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
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr milliseconds kSilence{300};
constexpr milliseconds kOutage = 3 * kSilence;

class JobOutageTest : public ::testing::TestWithParam<LossPolicy> {
 protected:
  // wait_timeout is far shorter than an outage.
  JobOutageTest() {
    auto job = rack_.Join({.job = "digits",
                           .on_loss = GetParam(),
                           .wait_timeout = kSilence / 3,
                           .leave_timeout = milliseconds(1'000)});
    EXPECT_TRUE(job.ok()) << ToString(job.status());
    job_.emplace(*std::move(job));
  }
  // Calls while the second daemon's control cannot be reached, and until it can.
  template <typename Call>
  void DuringAnOutage(const Call& call) {
    rack_[1].HideCalls(true);
    std::atomic<bool> over{false};
    std::thread network([&] {
      std::this_thread::sleep_for(kOutage);
      over = true;
      rack_[1].HideCalls(false);
    });
    const Status status = call();
    EXPECT_TRUE(status.ok()) << ToString(status);
    EXPECT_TRUE(over);
    network.join();
  }
  FakeRack rack_{{2, 2}, {.liveness_timeout = kSilence.count() * kMillisecond}};
  std::optional<Job> job_;
};

TEST_P(JobOutageTest, AddKeysWaitsAndTrainingContinues) {
  std::optional<Key> key;
  DuringAnOutage([&] {
    auto added = job_->AddKey("w", f32, 1000, None{});
    if (added.ok()) key.emplace(*added);
    return added.status();
  });
  std::fill_n(key->gradients<float>().begin(), 1000, 3.0f);
  EXPECT_TRUE(key->PushPull().Wait().ok());
  EXPECT_THAT(key->parameters<float>(), Each(3.0f));
}

TEST_P(JobOutageTest, LeaveWaits) {
  DuringAnOutage([&] { return job_->Leave(); });
  EXPECT_EQ(rack_[1].left_count(), 1);
}

TEST_P(JobOutageTest, LostAnswersChangeNothing) {
  rack_[0].LoseAnswers(2);
  rack_[1].LoseAnswers(1);
  auto key = job_->AddKey("w", f32, 1000, None{});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  EXPECT_THAT(rack_[0].add_keys_requests(), SizeIs(3));
  for (const v1::AddKeysRequest& request : rack_[0].add_keys_requests())
    EXPECT_EQ(request.batch(), 0u);
  std::fill_n(key->gradients<float>().begin(), 1000, 2.0f);
  EXPECT_TRUE(key->PushPull().Wait().ok());
  EXPECT_THAT(key->parameters<float>(), Each(2.0f));
  rack_[0].LoseAnswers(1);
  EXPECT_TRUE(job_->Barrier().ok());
  EXPECT_TRUE(job_->Barrier().ok());
  EXPECT_THAT(rack_[0].barriers(), ElementsAre(0, 0, 1));
  rack_[0].LoseAnswers(1);
  EXPECT_TRUE(job_->Leave().ok());
  EXPECT_EQ(rack_[0].left_count(), 2);
  EXPECT_EQ(rack_[1].left_count(), 1);
}

TEST_P(JobOutageTest, ADaemonThatForgotTheSessionAfterALostAnswerHasLetTheRankLeave) {
  rack_[1].LoseAnswers(1);
  std::thread end([&] {
    while (rack_[1].left_count() == 0) std::this_thread::yield();
    rack_[1].ForgetSession();  // the job has ended there
  });
  const Status left = job_->Leave();
  EXPECT_TRUE(left.ok()) << ToString(left);
  end.join();
}

// The daemon closes the lanes of a rank that has left, so they say no more that it lives.
TEST_P(JobOutageTest, LeaveWaitsWithoutLanesToo) {
  rack_[1].LoseAnswers(1);
  std::thread end([&] {
    while (rack_[1].left_count() == 0) std::this_thread::yield();
    rack_[1].HideCalls(true);
    rack_[1].CloseLanes();
    std::this_thread::sleep_for(kOutage);
    rack_[1].HideCalls(false);
  });
  const Status left = job_->Leave();
  EXPECT_TRUE(left.ok()) << ToString(left);
  end.join();
}

TEST_P(JobOutageTest, ErrorsOfTheDaemonAreNotRepeated) {
  for (const absl::Status& refusal :
       {absl::ResourceExhaustedError("over the quota"), absl::InternalError("a bug"),
        absl::DeadlineExceededError("no core loop answered")}) {
    FakeRack rack({2});
    auto job = rack.Join({.job = "digits", .on_loss = GetParam()});
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    rack[0].RefuseKeys(refusal);
    const auto key = job->AddKey("w", f32, 1000, None{});
    EXPECT_THAT(key.status().message(), HasSubstr(std::string(refusal.message())));
  }
}

TEST_P(JobOutageTest, ADaemonThatDiesEndsTheWait) {
  rack_[0].HideCalls(true);
  std::thread death([&] {
    std::this_thread::sleep_for(kSilence);
    rack_[0].Die();
  });
  const Status met = job_->Barrier();
  death.join();
  EXPECT_FALSE(met.ok());
  EXPECT_THAT(met.message(), HasSubstr(rack_[0].name()));
}

INSTANTIATE_TEST_SUITE_P(Policies, JobOutageTest,
                         ::testing::Values(LossPolicy::kFail, LossPolicy::kWait),
                         [](const auto& each) {
                           return each.param == LossPolicy::kFail ? "Fail" : "Wait";
                         });

}  // namespace
}  // namespace phub::client
