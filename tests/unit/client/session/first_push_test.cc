#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FirstPushTest : public ::testing::Test {
 protected:
  FirstPushTest() {
    SetLogSink(
        [](void* self, LogLevel, const std::string& line) {
          auto& test = *static_cast<FirstPushTest*>(self);
          const std::lock_guard lock(test.mutex_);
          if (line.find("key=") != std::string::npos) test.lines_.push_back(line);
        },
        this);
    rack_ = std::make_unique<FakeRack>(std::vector<std::uint32_t>{1}, FakeDaemonOptions());
    auto job = rack_->Join({.job = "digits"});
    job_.emplace(*std::move(job));
  }
  ~FirstPushTest() override { SetLogSink(nullptr, nullptr); }
  std::vector<std::string> Lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::unique_ptr<FakeRack> rack_;
  std::optional<Job> job_;
};

TEST_F(FirstPushTest, AKeyThatNobodyInitializedIsReportedOnce) {
  Key key = *job_->AddKey("fc1.weight", f32, 8, Sgd{.learning_rate = 0.1});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(key.PushPull().Wait().ok());
  EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr("event=key_not_initialized"),
                                         HasSubstr("fc1.weight"), HasSubstr("Initialize()"))));
}

TEST_F(FirstPushTest, OneKeyOfAJobIsReported) {
  for (const char* name : {"fc1.weight", "fc1.bias", "fc2.weight"}) {
    Key key = *job_->AddKey(name, f32, 8, Sgd{});
    ASSERT_TRUE(key.PushPull().Wait().ok());
  }
  EXPECT_THAT(Lines(),
              ElementsAre(AllOf(HasSubstr("event=key_not_initialized"), HasSubstr("fc1.weight")),
                          AllOf(HasSubstr("event=learning_rate_zero"), HasSubstr("fc1.weight"))));
}

TEST_F(FirstPushTest, ALearningRateOfZeroIsReported) {
  Key key = *job_->AddKey("fc1.weight", f32, 8, Sgd{});
  ASSERT_TRUE(job_->Initialize(key, std::vector<float>(8, 1.0f)).ok());
  ASSERT_TRUE(key.PushPull().Wait().ok());
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("event=learning_rate_zero")));
}

TEST_F(FirstPushTest, RightUseIsSilent) {
  Key trained = *job_->AddKey("fc1.weight", f32, 8, Sgd{});
  ASSERT_TRUE(job_->Initialize(trained, std::vector<float>(8, 1.0f)).ok());
  ASSERT_TRUE(trained.SetHyperParameters(Sgd{.learning_rate = 0.1}).ok());
  ASSERT_TRUE(trained.PushPull().Wait().ok());
  Key reduced = *job_->AddKey("sum", f32, 8, None{});  // an all-reduce needs neither
  ASSERT_TRUE(reduced.PushPull().Wait().ok());
  EXPECT_THAT(Lines(), IsEmpty());
}

}  // namespace
}  // namespace phub::client
