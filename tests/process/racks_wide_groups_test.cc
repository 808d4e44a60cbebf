// Groups that have members in several racks: bits in the plan's order, next to keys of the job and
// to groups inside racks, and the death of a member.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <phub/group.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"
#include "tests/process/wide_groups.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class WideGroupsWithPlans : public WideGroups, public ::testing::WithParamInterface<const char*> {};
// In a star, racks 1 to 3 have no lanes to each other before their groups need them.
INSTANTIATE_TEST_SUITE_P(Plans, WideGroupsWithPlans,
                         ::testing::Values("ring", "sharded-star", "double-binary-tree"));

TEST_P(WideGroupsWithPlans, SumAlongPlansOfTheirOwnNextToEachOther) {
  const std::string planner = GetParam();
  Join("wide", planner);
  ASSERT_EQ(jobs_.size(), kAllRanks);
  const std::vector<std::pair<std::string, Ranks>> groups = {{"three", {1, 2, 5}},
                                                             {"two", {0, 6, 7}},
                                                             {"most", {2, 3, 4, 5, 7}},
                                                             {"all", {0, 2, 4, 6}},
                                                             {"three", {3, 6}}};
  std::vector<MadeGroup> made;
  Planner plans(planner);
  for (const auto& [name, ranks] : groups) {
    made.push_back({ranks, Add(name, ranks), plans.SumsOf("wide", name, plans.Plan({ranks})[0])});
    ASSERT_EQ(made.back().keys.size(), ranks.size());
  }
  made_.clear();
  for (int round = 0; round < 4; ++round) {
    // Expect: the bits do not change while other groups come and go.
    if (round == 2) Add("comes", {1, 3, 5});
    if (round == 3) RemoveMade();
    ExchangeAll(made, round);
  }
}

TEST_F(WideGroups, WhatDoesNotWorkIsRefusedByName) {
  Join("refused", "ring");
  ASSERT_EQ(jobs_.size(), kAllRanks);
  const Ranks ranks = {1, 3};
  std::vector<Group> groups;
  for (const std::uint32_t rank : ranks) groups.push_back(*jobs_[rank].NewGroup("pair", ranks));
  const auto refusal = [&](const KeyOptions& options, ElementType type) {
    return ToString(groups[0].AddKey("key", type, 8, options).status());
  };
  EXPECT_THAT(refusal({.movement = Movement::kGather}, f32),
              HasSubstr("movement gather does not work in jobs that span racks, except in groups "
                        "inside one rack"));
  EXPECT_THAT(refusal({.pooled = true}, u8),
              HasSubstr("pooled keys do not work in groups that have members in several racks"));
  // Expect: nothing has ended the job.
  const std::vector<Key> keys = Add("other", {1, 2});
  ASSERT_EQ(keys.size(), 2u);
}

TEST_F(WideGroups, AreMadeAndRemovedInALoop) {
  Join("loop", "ring");
  ASSERT_EQ(jobs_.size(), kAllRanks);
  std::vector<Key> stays = Add("stays", {2, 4, 6});
  made_.clear();
  std::vector<std::uint64_t> memory(kRackCount);
  const int rounds = std::getenv("PHUB_TEST_LONG") != nullptr ? 200 : 12;
  for (int i = 0; i < rounds; ++i) {
    const Ranks ranks = i % 2 == 0 ? Ranks{0, 3, 5} : Ranks{1, 2, 3, 6};
    std::vector<Key> keys = Add("pair", ranks);
    ASSERT_EQ(keys.size(), ranks.size());
    Exchange(keys, static_cast<float>(i + 1));
    RemoveMade();
    Exchange(stays, static_cast<float>(i + 1));
    EXPECT_FALSE(keys[0].PushPull().Wait(kWideWait).ok());
    for (std::size_t rack = 0; rack < kRackCount; ++rack) {
      const std::uint64_t bytes = ShownAt(rack, "loop").memory_bytes();
      if (i == 1) memory[rack] = bytes;
      if (i > 1) {
        EXPECT_EQ(bytes, memory[rack]) << "rack " << rack << " round " << i;
      }
    }
  }
}

// Racks 0 to 3 all take part in both groups. One plan for both would load the same inner racks
// twice.
TEST_F(WideGroups, DeclaredTogetherBalanceTheRacks) {
  Join("declared", "double-binary-tree");
  ASSERT_EQ(jobs_.size(), kAllRanks);
  const std::vector<GroupSpec> specs = {{"even", {0, 2, 4, 6}}, {"odd", {1, 3, 5, 7}}};
  std::vector<std::vector<Key>> keys(specs.size());
  for (std::size_t g = 0; g < specs.size(); ++g) {
    std::vector<std::thread> threads;
    for (const std::uint32_t rank : specs[g].ranks) {
      threads.emplace_back([&, rank] {
        auto own = jobs_[rank].NewGroups(specs);
        ASSERT_TRUE(own.ok() && own->size() == 1) << ToString(own.status());
        auto key = own->front().AddKey("sum", f32, kWideElements);
        ASSERT_TRUE(key.ok()) << ToString(key.status());
        const std::lock_guard lock(mutex_);
        keys[g].push_back(*std::move(key));
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(keys[g].size(), specs[g].ranks.size());
  }
  for (int i = 1; i <= 4; ++i) Exchange(keys[0], static_cast<float>(i));
  const std::vector<std::uint64_t> first = BytesOfRacks("declared");
  for (int i = 1; i <= 4; ++i) Exchange(keys[1], static_cast<float>(i));
  const std::vector<std::uint64_t> both = BytesOfRacks("declared");
  EXPECT_GT(*std::ranges::max_element(first), *std::ranges::min_element(first));
  EXPECT_LT(*std::ranges::max_element(both), 2 * *std::ranges::max_element(first));
}

// Rank 5, alone in its rack, hangs before it pushes the group's key, and is killed.
TEST(WideGroupFaults, TheErrorOfADeadMemberNamesTheGroupInEveryRack) {
  RackProcess racks(3, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  std::vector<Process> trainers;
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    std::vector<std::string> more = {"--plan", "ring", "--group", "0,1,5"};
    if (rank == 5) more.insert(more.end(), {"--group-stops-at", "3"});
    trainers.push_back(StartTrainer({.endpoint = racks.endpoint(rank / 2),
                                     .job = "training",
                                     .rank = rank,
                                     .world_size = 6,
                                     .iterations = 1'000'000,
                                     .more = more}));
  }
  ASSERT_TRUE(WaitForIteration(trainers[5], 2, 60 * kSecond)) << racks.Outputs();
  ASSERT_TRUE(WaitForIteration(trainers[0], 2, 60 * kSecond)) << racks.Outputs();
  trainers[5].Signal(SIGKILL);
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_TRUE(trainers[rank].Wait(60 * kSecond).has_value());
    EXPECT_THAT(VerdictOf(trainers[rank]),
                AllOf(HasSubstr("rank 5 ("), HasSubstr("died"), HasSubstr("group pair")))
        << rank;
  }
}

}  // namespace
}  // namespace phub::process
