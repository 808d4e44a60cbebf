// Ranks that replace one that died, and loaded checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::KeyVersions At(std::uint32_t key, std::uint64_t applied, std::uint64_t reductions) {
  v1::KeyVersions versions;
  versions.set_key_index(key);
  versions.set_chunk_count(2);
  versions.set_applied_min(applied);
  versions.set_applied_max(applied);
  versions.set_reductions_min(reductions);
  versions.set_reductions_max(reductions);
  return versions;
}

JobOptions Restart() { return {.job = "digits", .on_loss = LossPolicy::kWait, .restart = true}; }

TEST(Resume, KeysComeAsTheyWereAndTheNextPushIsTheNextVersion) {
  FakeRack rack({1, 1});
  v1::GetVersionsResponse ahead, behind;
  *ahead.add_keys() = At(0, 9, 8);
  *behind.add_keys() = At(0, 8, 7);
  rack[0].Resume(true, ahead);
  rack[1].Resume(true, behind);
  auto job = rack.Join(Restart());
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_TRUE(job->resumed());
  EXPECT_EQ(job->iteration(), 7u);
  auto key = job->AddKey("w", f32, 128, Sgd{.learning_rate = 0.1});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  EXPECT_THAT(key->parameters<float>(), Each(FakeDaemon::kStored));
  EXPECT_EQ(job->iteration(), 7u);
  // Initializing it changes nothing, and calls no daemon.
  EXPECT_TRUE(job->Initialize(*key, std::vector<float>(128, 1.0f)).ok());
  EXPECT_THAT(key->parameters<float>(), Each(FakeDaemon::kStored));
  ASSERT_TRUE(key->PushPull().Wait().ok());
  EXPECT_EQ(job->iteration(), 8u);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto messages = rack[i].messages();
    ASSERT_EQ(messages.size(), 2u);
    EXPECT_EQ(messages[0].kind, wire::MessageKind::kPull);
    EXPECT_EQ(messages[0].iteration.value, 8u);
    EXPECT_EQ(messages[1].kind, wire::MessageKind::kGradient);
    EXPECT_EQ(messages[1].iteration.value, 9u);
  }
}

TEST(Resume, DaemonThatLostItsPartEndsItBeforeItBegins) {
  FakeRack rack({1, 1});
  v1::GetVersionsResponse some;
  *some.add_keys() = At(0, 9, 8);
  rack[0].Resume(true, some);
  const auto job = rack.Join(Restart());
  EXPECT_EQ(job.status().code(), StatusCode::kAborted);
  EXPECT_THAT(job.status().message(), HasSubstr("127.0.0.1:7701 was restarted"));
  EXPECT_EQ(rack[0].left_count(), 1);
}

v1::LoadedState Loaded() {
  v1::LoadedState loaded;
  loaded.set_iteration(500);
  v1::KeyStateInfo& key = *loaded.add_keys();
  key.set_reductions(500);
  key.mutable_hyper_parameters()->set_learning_rate(0.25);
  return loaded;
}

TEST(LoadState, EveryRankPutsInPlaceWhatRankZeroBrought) {
  FakeRack rack({1, 1});
  rack[0].HaveLoaded(Loaded());
  auto job = rack.Join({.job = "digits", .rank = 1, .world_size = 2});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  auto key = job->AddKey("w", f32, 128, Sgd{.learning_rate = 0.1});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  const auto iteration = job->LoadCheckpoint("ignored");
  ASSERT_TRUE(iteration.ok()) << ToString(iteration.status());
  EXPECT_EQ(*iteration, 500u);
  EXPECT_EQ(job->iteration(), 500u);
  EXPECT_THAT(key->parameters<float>(), Each(FakeDaemon::kStored));
  EXPECT_TRUE(job->Initialize(*key, {}).ok());
  ASSERT_TRUE(key->PushPull().Wait().ok());
  EXPECT_EQ(job->iteration(), 501u);
  EXPECT_EQ(rack[1].messages().front().operation, wire::RoundOperation::kLoad);
  ASSERT_FALSE(rack[1].records().empty());
  EXPECT_EQ(rack[1].records().back().learning_rate, 0.25);
  EXPECT_THAT(rack[0].barriers(), ElementsAre(0));
}

TEST(LoadState, TheErrorThatEndsTheJobNamesWhatWasLoaded) {
  for (const bool told : {true, false}) {
    FakeRack rack({1});
    v1::LoadedState loaded = Loaded();
    if (told) {
      loaded.mutable_source()->set_directory("/data/digits");
      loaded.mutable_source()->set_host("node7");
    }
    rack[0].HaveLoaded(loaded);
    auto job = rack.Join({.job = "digits", .rank = 1, .world_size = 2});
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    auto key = job->AddKey("w", f32, 128, None{});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    ASSERT_TRUE(job->LoadCheckpoint("ignored").ok());
    v1::Fault fault;
    fault.set_message("rank 0 died");
    rack[0].GiveVerdict(fault);
    while (job->status().ok()) std::this_thread::yield();
    EXPECT_THAT(std::string(job->status().message()),
                HasSubstr(told ? "rank 1 knows of is iteration 500 in /data/digits on host node7"
                               : "rank 1 knows of is iteration 500 that rank 0 loaded"));
  }
}

TEST(LoadState, RefusalOfRankZeroIsEverybodysAndTheJobGoesOn) {
  FakeRack rack({1, 1});
  auto job = rack.Join({.job = "digits", .rank = 1, .world_size = 2});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  auto key = job->AddKey("w", f32, 128, None{});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  rack[0].HaveLoaded(absl::InvalidArgumentError("/state: tensor w is truncated"));
  const auto loaded = job->LoadCheckpoint("ignored");
  EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(loaded.status().message(), "/state: tensor w is truncated");
  EXPECT_THAT(rack[0].barriers(), ElementsAre(0, 1));
  EXPECT_TRUE(key->PushPull().Wait().ok());
}

TEST(LoadState, RankZeroTellsEveryDaemonWhyThereIsNothing) {
  FakeRack rack({1, 1});
  auto job = rack.Join({.job = "digits"});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  auto key = job->AddKey("w", f32, 128, None{});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  const auto loaded = job->LoadCheckpoint("/nowhere/state");
  EXPECT_FALSE(loaded.ok());
  for (std::size_t i = 0; i < 2; ++i) {
    const auto requests = rack[i].load_requests();
    ASSERT_EQ(requests.size(), 1u);
    EXPECT_EQ(requests[0].refusal(), loaded.status().message());
  }
  EXPECT_TRUE(job->status().ok());
  EXPECT_TRUE(key->PushPull().Wait().ok());
}

}  // namespace
}  // namespace phub::client
