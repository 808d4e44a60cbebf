#include "client/session/resume_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::client {
namespace {

using ::testing::HasSubstr;

struct Versions {
  std::uint64_t applied_min = 0, applied_max = 0, reductions_min = 0, reductions_max = 0;
  std::uint64_t first_iteration = 0;
};

void Add(DaemonVersions& daemon, const Versions& versions, std::uint32_t record = 0,
         std::uint32_t previous = 0) {
  v1::KeyVersions& key = *daemon.versions.add_keys();
  key.set_key_index(static_cast<std::uint32_t>(daemon.versions.keys_size()) - 1);
  key.set_chunk_count(3);
  key.set_applied_min(versions.applied_min);
  key.set_applied_max(versions.applied_max);
  key.set_reductions_min(versions.reductions_min);
  key.set_reductions_max(versions.reductions_max);
  key.set_first_iteration(versions.first_iteration);
  key.set_record(record);
  key.mutable_hyper_parameters()->set_learning_rate(record);
  key.set_previous_record(previous);
  key.mutable_previous_hyper_parameters()->set_learning_rate(previous);
}

DaemonVersions Daemon(const char* name, bool resumed = true) {
  return {.daemon = name, .resumed = resumed, .versions = {}};
}

TEST(ResumePlan, IterationIsTheLeastOfAllChunksOfAllKeysAndDaemons) {
  DaemonVersions daemons[] = {Daemon("a"), Daemon("b")};
  // Receive: initialized keys; key 0 ahead at one daemon, key 1 added at iteration 5.
  Add(daemons[0], {9, 9, 8, 8, 0});
  Add(daemons[0], {3, 4, 2, 3, 5});
  Add(daemons[1], {8, 9, 7, 8, 0});
  Add(daemons[1], {4, 4, 3, 3, 5});
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  // Expect: iteration 7, and for each key the version of its last reduction up to there.
  EXPECT_TRUE(plan->resumed);
  EXPECT_EQ(plan->iteration, 7u);
  EXPECT_EQ(plan->keys[0].version.value, 8u);
  EXPECT_EQ(plan->keys[0].reductions, 7u);
  EXPECT_EQ(plan->keys[1].version.value, 3u);
  EXPECT_EQ(plan->keys[1].reductions, 2u);
  EXPECT_EQ(plan->keys[1].first_iteration, 5u);
}

// With time that grows as the square of the number of keys, this test would not end in time.
TEST(ResumePlan, AJobMayHaveEveryPossibleKey) {
  DaemonVersions daemons[] = {Daemon("a"), Daemon("b"), Daemon("c")};
  for (DaemonVersions& daemon : daemons)
    for (std::uint32_t i = 0; i < kKeysPerJobMax; ++i) Add(daemon, {5, 5, 5, 5, 0}, 1 + i % 7);
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  ASSERT_EQ(plan->keys.size(), kKeysPerJobMax);
  EXPECT_EQ(plan->iteration, 5u);
  for (std::uint32_t i = 0; i < kKeysPerJobMax; ++i)
    ASSERT_EQ(plan->keys[i].hyper_version.value, 1 + i % 7);
}

TEST(ResumePlan, RecordIsTheOneOfTheVersion) {
  DaemonVersions daemons[] = {Daemon("a")};
  Add(daemons[0], {5, 5, 5, 5, 0}, /*record=*/4, /*previous=*/3);
  Add(daemons[0], {6, 6, 6, 6, 0}, 7, 6);
  Add(daemons[0], {5, 6, 5, 6, 0}, 2, 1);
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->iteration, 5u);
  EXPECT_EQ(plan->keys[0].hyper_version.value, 4u);
  EXPECT_EQ(plan->keys[1].version.value, 5u);
  EXPECT_EQ(plan->keys[1].hyper_version.value, 6u);
  EXPECT_EQ(plan->keys[1].hyper_parameters.learning_rate(), 6.0);
  EXPECT_EQ(plan->keys[2].hyper_version.value, 2u);
}

TEST(ResumePlan, KeyWithoutItsFirstAssignmentEverywhereIsAsInAFirstRun) {
  DaemonVersions daemons[] = {Daemon("a"), Daemon("b")};
  Add(daemons[0], {0, 1, 0, 0, 0});
  Add(daemons[1], {1, 1, 0, 0, 0});
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->iteration, 0u);
  EXPECT_EQ(plan->keys[0].version.value, 0u);
}

TEST(ResumePlan, BroadcastUnderWayIsDoneAgain) {
  DaemonVersions daemons[] = {Daemon("a")};
  // Initialized, three reductions, and in some chunks a broadcast after them.
  Add(daemons[0], {4, 5, 3, 3, 0});
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->keys[0].version.value, 4u);
  EXPECT_EQ(plan->keys[0].reductions, 3u);
}

TEST(ResumePlan, KeyThatOneDaemonDoesNotKnowYetHasHadNoRound) {
  DaemonVersions daemons[] = {Daemon("a"), Daemon("b")};
  Add(daemons[0], {3, 3, 3, 3, 0});
  Add(daemons[0], {0, 0, 0, 0, 3});
  Add(daemons[1], {3, 3, 3, 3, 0});
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->iteration, 3u);
  EXPECT_EQ(plan->keys[1].version.value, 0u);
  EXPECT_EQ(plan->keys[1].first_iteration, 3u);
}

TEST(ResumePlan, RankThatDiedWhileJoiningStartsAsANewOne) {
  DaemonVersions daemons[] = {Daemon("a"), Daemon("b", /*resumed=*/false)};
  Add(daemons[0], {0, 0, 0, 0, 0});
  Add(daemons[1], {0, 0, 0, 0, 0});
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_FALSE(plan->resumed);
}

TEST(ResumePlan, DaemonThatLostItsPartIsNamed) {
  DaemonVersions daemons[] = {Daemon("a"), Daemon("b", /*resumed=*/false)};
  Add(daemons[0], {6, 6, 5, 5, 0});
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  EXPECT_EQ(plan.status().code(), StatusCode::kAborted);
  EXPECT_THAT(plan.status().message(), HasSubstr("daemon b was restarted"));
}

TEST(ResumePlan, VersionsThatMakeNoSenseAreRefused) {
  const Versions wrong[] = {{5, 4, 3, 3, 0}, {3, 3, 4, 4, 0}, {5, 5, 5, 3, 0}};
  for (const Versions& versions : wrong) {
    DaemonVersions daemons[] = {Daemon("a")};
    Add(daemons[0], versions);
    EXPECT_EQ(MakeResumePlan(daemons).status().code(), StatusCode::kInternal);
  }
  // Three iterations apart: two versions cannot cover that.
  DaemonVersions apart[] = {Daemon("a")};
  Add(apart[0], {3, 3, 3, 3, 0});
  Add(apart[0], {6, 6, 6, 6, 0});
  EXPECT_THAT(MakeResumePlan(apart).status().message(), HasSubstr("key 1"));
  DaemonVersions disagree[] = {Daemon("a"), Daemon("b")};
  Add(disagree[0], {3, 3, 3, 3, 0});
  Add(disagree[1], {3, 3, 3, 3, 1});
  EXPECT_FALSE(MakeResumePlan(disagree).ok());
}

TEST(ResumePlan, NewRankHasNoPlan) {
  DaemonVersions daemons[] = {Daemon("a", false)};
  const Result<ResumePlan> plan = MakeResumePlan(daemons);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->resumed);
}

}  // namespace
}  // namespace phub::client
