// Job::RemoveKeys against a fake daemon: what a rank checks itself, and what stays after a refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using ::testing::HasSubstr;

class JobRemovalTest : public ::testing::Test {
 protected:
  void Join(bool supported = true) {
    const FakeDaemonOptions options{.collective = supported};
    rack_ = std::make_unique<FakeRack>(std::vector<std::uint32_t>{options.core_count}, options);
    daemon_ = &(*rack_)[0];
    JobOptions job_options;
    job_options.job = "digits";
    auto job = rack_->Join(job_options);
    job_.emplace(*std::move(job));
  }
  static KeySpec SpecOf(const std::string& name, bool collective = true) {
    return {.name = name, .element_count = 300, .options = {.collective = collective}};
  }
  std::vector<Key> Add(const std::vector<KeySpec>& specs) {
    auto keys = job_->AddKeys(specs);
    EXPECT_TRUE(keys.ok()) << ToString(keys.status());
    return *std::move(keys);
  }
  void ExpectRound(Key& key, float value) {
    std::ranges::fill(key.gradients<float>(), value);
    const Status status = key.PushPull().Wait();
    ASSERT_TRUE(status.ok()) << ToString(status);
    EXPECT_EQ(key.parameters<float>().back(), value);
  }
  std::string Refusal(const std::vector<Key>& keys) {
    const Status status = job_->RemoveKeys(keys);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }

  std::unique_ptr<FakeRack> rack_;
  FakeDaemon* daemon_ = nullptr;
  std::optional<Job> job_;
};

TEST_F(JobRemovalTest, KeysAreRemovedAndTheirNamesAndNumbersUsedAgain) {
  Join();
  std::vector<Key> stays = Add({SpecOf("stays")});
  for (int i = 1; i <= 5; ++i) {
    std::vector<Key> keys = Add({SpecOf("a"), SpecOf("b")});
    const std::vector<Key> last = Add({SpecOf("c")});
    ExpectRound(keys[0], static_cast<float>(i));
    ExpectRound(keys[1], static_cast<float>(2 * i));
    keys.push_back(last[0]);
    const Status status = job_->RemoveKeys(keys);
    ASSERT_TRUE(status.ok()) << ToString(status);
    EXPECT_THAT(std::string(keys[0].PushPull().Wait().message()),
                HasSubstr("the key was removed with RemoveKeys"));
    EXPECT_EQ(keys[0].parameters<float>().back(), static_cast<float>(i));
    EXPECT_EQ(daemon_->add_keys_requests().back().removals(), static_cast<std::uint32_t>(i - 1));
    ExpectRound(stays[0], static_cast<float>(-i));
  }
  EXPECT_TRUE(job_->RemoveKeys({}).ok());
  EXPECT_TRUE(job_->Leave().ok());
}

TEST_F(JobRemovalTest, RefusesWhatCannotBeRemovedBeforeAnythingIsSent) {
  Join();
  const std::vector<Key> weights = Add({SpecOf("w", /*collective=*/false)});
  const std::vector<Key> first = Add({SpecOf("a")});
  std::vector<Key> pair = Add({SpecOf("b"), SpecOf("c")});
  daemon_->RefuseRemoval(absl::InternalError("must not be called"));
  EXPECT_THAT(Refusal({first[0]}), HasSubstr("key a of job digits cannot be removed without key b, "
                                             "which was added after it"));
  EXPECT_THAT(Refusal({pair[0]}), HasSubstr("cannot be removed without key c"));
  EXPECT_THAT(Refusal({pair[1]}), HasSubstr("without key b: keys that one call has added"));
  EXPECT_THAT(Refusal({pair[0], pair[0], pair[1]}),
              HasSubstr("key b of job digits is given twice"));
  EXPECT_THAT(Refusal({weights[0]}), HasSubstr("key w of job digits is not collective"));
  daemon_->HoldReplies(true);
  Handle handle = pair[1].PushPull();
  EXPECT_THAT(Refusal(pair), HasSubstr("key c of job digits, rank 0: iteration 1 is still in "
                                       "flight; wait for its handle before RemoveKeys"));
  daemon_->HoldReplies(false);
  ASSERT_TRUE(handle.Wait().ok());
  daemon_->RefuseRemoval(absl::OkStatus());
  // Expect: a refusal marks no key.
  ExpectRound(pair[0], 3.0f);
  EXPECT_TRUE(job_->RemoveKeys(pair).ok());
  EXPECT_THAT(Refusal(pair), HasSubstr("key b is not a key of job digits, or was removed"));
}

TEST_F(JobRemovalTest, KeysStayUsableIfTheDaemonRefuses) {
  Join();
  std::vector<Key> keys = Add({SpecOf("a")});
  daemon_->RefuseRemoval(absl::InvalidArgumentError("the next call has sequence 1"));
  EXPECT_THAT(Refusal(keys), HasSubstr("the next call has sequence 1"));
  ExpectRound(keys[0], 2.0f);
  daemon_->RefuseRemoval(absl::OkStatus());
  EXPECT_TRUE(job_->RemoveKeys(keys).ok());
}

TEST_F(JobRemovalTest, ALostAnswerIsAskedForAgain) {
  Join();
  const std::vector<Key> keys = Add({SpecOf("a")});
  daemon_->LoseAnswers(2);
  EXPECT_TRUE(job_->RemoveKeys(keys).ok());
  std::vector<Key> later = Add({SpecOf("a")});
  ExpectRound(later[0], 4.0f);
}

TEST_F(JobRemovalTest, LeavingEndsACallThatWaitsForOtherRanks) {
  Join();
  std::vector<Key> keys = Add({SpecOf("a")});
  daemon_->HoldRemoval(true);
  Status removed;
  std::thread remover([&] { removed = job_->RemoveKeys(keys); });
  while (daemon_->removals_held() == 0) std::this_thread::yield();
  EXPECT_TRUE(job_->Leave().ok());
  remover.join();
  EXPECT_EQ(removed.code(), StatusCode::kCancelled);
  EXPECT_THAT(std::string(removed.message()),
              HasSubstr("leaves job digits while RemoveKeys waits"));
  EXPECT_FALSE(keys[0].PushPull().Wait().ok());
}

TEST_F(JobRemovalTest, DaemonsThatDoNotKnowItAreNamed) {
  Join(/*supported=*/false);
  const std::vector<Key> keys = Add({SpecOf("w", /*collective=*/false)});
  EXPECT_THAT(Refusal({keys[0]}), HasSubstr("daemon 127.0.0.1:7700 has version 0.0.0-test, which "
                                            "does not support RemoveKeys: upgrade it"));
  EXPECT_THAT(Refusal({}), HasSubstr("does not support RemoveKeys: upgrade it"));
}

}  // namespace
}  // namespace phub::client
