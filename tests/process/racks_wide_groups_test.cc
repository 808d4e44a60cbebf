// Groups that have members in several racks: bits in the plan's order, next to keys of the job and
// to groups inside racks, and the death of a member.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <phub/group.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "common/plan/subset.h"
#include "tests/process/group_calls.h"
#include "tests/process/join_all.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"
#include "tests/support/rack_sum.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Ranks = std::vector<std::uint32_t>;

constexpr std::uint32_t kRackCount = 4;
constexpr std::uint32_t kRanksInRack = 2;
constexpr std::uint32_t kAllRanks = kRackCount * kRanksInRack;
constexpr std::uint32_t kCoresInRack = 2;
constexpr std::uint32_t kChunkBytes = 16 << 10;
constexpr std::size_t kWideElements = 20'000;  // five chunks
constexpr std::chrono::seconds kWideWait{60};

// How the racks of these ranks sum each chunk of the key of a group of theirs.
std::vector<oracle::RackSum> SumsOfGroup(const std::string& job, const std::string& group,
                                         const Ranks& ranks, const std::string& planner) {
  const auto topology = plan::Generate(fmt::format("switch:{}", kRackCount));
  std::vector<plan::NodeIndex> racks;
  for (const std::uint32_t rank : ranks) {
    const plan::NodeIndex rack = topology->members()[rank / kRanksInRack];
    if (racks.empty() || racks.back() != rack) racks.push_back(rack);
  }
  const auto forest = plan::PlanForMembers(*topology, racks, [&](const plan::Topology& part) {
    return plan::MakePlan(*plan::FindPlanner(planner), part,
                          {.starts = 8, .size_bytes = std::int64_t{64} << 20});
  });
  EXPECT_TRUE(forest.ok()) << forest.status();
  const oracle::SummedJob summed{.name = fmt::format("{}/{}", job, group),
                                 .core_count = kCoresInRack,
                                 .chunk_bytes = kChunkBytes,
                                 .keys = {{numeric::ElementType::kF32, kWideElements, 0}}};
  return oracle::SumsOf(*topology, *forest, summed)[0];
}

std::vector<float> ExpectedSum(const std::vector<oracle::RackSum>& sums, const Ranks& ranks,
                               int round) {
  std::vector<float> sum(kWideElements);
  for (std::size_t e = 0; e < kWideElements; ++e) {
    const auto of_rack = [&](std::uint32_t rack) {
      float own = 0;
      bool begun = false;
      for (const std::uint32_t rank : ranks) {
        if (rank / kRanksInRack != rack) continue;
        own = begun ? own + OrderedValue(rank, e, round) : OrderedValue(rank, e, round);
        begun = true;
      }
      return own;
    };
    sum[e] = oracle::Fold<float>(sums[e / (kChunkBytes / sizeof(float))], of_rack,
                                 [](float a, float b) { return a + b; });
  }
  return sum;
}

// All ranks are in this thread.
class WideGroups : public ::testing::Test {
 protected:
  void Join(const std::string& name, const std::string& plan) {
    std::vector<std::string> endpoints;
    for (std::uint32_t rack = 0; rack < kRackCount; ++rack)
      endpoints.push_back(racks_.endpoint(rack));
    jobs_ =
        JoinAll(endpoints,
                {.job = name, .world_size = kAllRanks, .chunk_bytes = kChunkBytes, .plan = plan});
  }
  // Adds the group's key on all members at once, since each waits for the other racks.
  std::vector<Key> Add(const std::string& name, const Ranks& ranks) {
    std::vector<Result<Key>> keys;
    std::vector<std::thread> threads;
    for (const std::uint32_t rank : ranks)
      keys.emplace_back(Status(StatusCode::kInternal, fmt::format("rank {}", rank)));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        auto group = jobs_[ranks[i]].NewGroup(name, ranks);
        if (!group.ok()) return void(keys[i] = group.status());
        keys[i] = group->AddKey("sum", f32, kWideElements);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Key> added;
    for (auto& key : keys) {
      EXPECT_TRUE(key.ok()) << ToString(key.status()) << racks_.Outputs();
      if (key.ok()) added.push_back(*std::move(key));
    }
    return added;
  }

  RackProcess racks_{kRackCount,
                     {"--cores", std::to_string(kCoresInRack), "--pin", "off"},
                     RackProcess::Kind::kManyRacks};
  std::vector<Job> jobs_;
};

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
  std::vector<std::vector<Key>> keys;
  std::vector<std::vector<oracle::RackSum>> sums;
  for (const auto& [name, ranks] : groups) {
    keys.push_back(Add(name, ranks));
    ASSERT_EQ(keys.back().size(), ranks.size());
    sums.push_back(SumsOfGroup("wide", name, ranks, planner));
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Handle> handles;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t m = 0; m < keys[g].size(); ++m) {
        const std::span<float> gradients = keys[g][m].gradients<float>();
        for (std::size_t e = 0; e < kWideElements; ++e)
          gradients[e] = OrderedValue(groups[g].second[m], e, round);
        handles.push_back(keys[g][m].PushPull());
      }
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kWideWait);
      ASSERT_TRUE(status.ok()) << ToString(status) << racks_.Outputs();
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::vector<float> expected = ExpectedSum(sums[g], groups[g].second, round);
      for (const Key& key : keys[g]) {
        const auto result = key.parameters<float>();
        ASSERT_EQ(std::memcmp(result.data(), expected.data(), kWideElements * sizeof(float)), 0)
            << groups[g].first << " round " << round;
      }
    }
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
  std::vector<Result<Group>> again = {jobs_[1].NewGroup("stays", Ranks{1, 2}),
                                      jobs_[2].NewGroup("stays", Ranks{1, 2})};
  std::thread added([&] { (void)again[0]->AddKey("a", f32, 1); });
  (void)again[1]->AddKey("a", f32, 1);
  added.join();
  EXPECT_THAT(ToString(again[0]->Remove()),
              HasSubstr("cannot remove group stays (ranks 1, 2): it has members in several racks"));
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
