// Groups that have members in several racks: bits in the plan's order, next to keys of the job and
// to groups inside racks, and the death of a member.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <phub/group.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/plan/around.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "phub/v1/admin.pb.h"
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

// Plans groups as rack 0 does: around the plans of the job and of the groups before.
class Planner {
 public:
  explicit Planner(const std::string& planner) : planner_(planner) {
    times_ = plan::LinkTimesOf(*topology_, *Make()(*topology_));
  }
  std::vector<plan::Forest> Plan(const std::vector<Ranks>& groups) {
    std::vector<std::vector<plan::NodeIndex>> racks;
    for (const Ranks& ranks : groups) {
      std::vector<plan::NodeIndex>& of_group = racks.emplace_back();
      for (const std::uint32_t rank : ranks) {
        const plan::NodeIndex rack = topology_->members()[rank / kRanksInRack];
        if (of_group.empty() || of_group.back() != rack) of_group.push_back(rack);
      }
    }
    const std::vector<plan::MakesForest> makers = {Make()};
    auto plans = plan::PlanAround(*topology_, racks, times_,
                                  {.makers = makers, .size_bytes = std::int64_t{64} << 20});
    EXPECT_TRUE(plans.ok()) << plans.status();
    std::vector<plan::Forest> forests;
    for (plan::GroupPlan& each : *plans) {
      plan::AddTo(times_, each.times);
      forests.push_back(std::move(each.forest));
    }
    return forests;
  }
  // How the racks of a group with this plan sum each chunk of its key.
  std::vector<oracle::RackSum> SumsOf(const std::string& job, const std::string& group,
                                      const plan::Forest& forest) const {
    const oracle::SummedJob summed{.name = fmt::format("{}/{}", job, group),
                                   .core_count = kCoresInRack,
                                   .chunk_bytes = kChunkBytes,
                                   .keys = {{numeric::ElementType::kF32, kWideElements, 0}}};
    return oracle::SumsOf(*topology_, forest, summed)[0];
  }

 private:
  plan::MakesForest Make() const {
    return [planner = planner_](const plan::Topology& part) {
      return plan::MakePlan(*plan::FindPlanner(planner), part,
                            {.starts = 8, .size_bytes = std::int64_t{64} << 20});
    };
  }

  const std::string planner_;
  const absl::StatusOr<plan::Topology> topology_ =
      plan::Generate(fmt::format("switch:{}", kRackCount));
  plan::LinkTimes times_;
};

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
        const std::lock_guard lock(mutex_);
        made_.push_back(*std::move(group));
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

  // Removes all groups that Add() has made.
  void RemoveMade() {
    std::vector<std::thread> threads;
    for (Group& group : made_) {
      threads.emplace_back([&] {
        const Status status = group.Remove();
        EXPECT_TRUE(status.ok()) << ToString(status) << racks_.Outputs();
      });
    }
    for (std::thread& thread : threads) thread.join();
    made_.clear();
  }
  static void Exchange(std::vector<Key>& keys, float value) {
    std::vector<Handle> handles;
    for (Key& key : keys) {
      std::ranges::fill(key.gradients<float>(), value);
      handles.push_back(key.PushPull());
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kWideWait);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    const float sum = static_cast<float>(keys.size()) * value;
    for (const Key& key : keys) EXPECT_THAT(key.parameters<float>(), ::testing::Each(sum));
  }
  v1::JobInfo ShownAt(std::size_t rack, const std::string& job) const {
    v1::JobInfo info;
    const Finished shown = racks_.Ask(rack, {"job", "get", job, "-o", "json"});
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(shown.output, &info).ok())
        << shown.output;
    return info;
  }
  // Payload that each rack has sent and received on lanes to other racks.
  std::vector<std::uint64_t> BytesOfRacks(const std::string& job) const {
    std::vector<std::uint64_t> bytes;
    for (std::size_t rack = 0; rack < kRackCount; ++rack) {
      bytes.push_back(0);
      const v1::JobInfo info = ShownAt(rack, job);
      for (const v1::ExchangeLink& link : info.exchange().links())
        bytes.back() += link.partial_bytes_sent() + link.result_bytes_sent() +
                        link.partial_bytes_received() + link.result_bytes_received();
    }
    return bytes;
  }

  RackProcess racks_{kRackCount,
                     {"--cores", std::to_string(kCoresInRack), "--pin", "off"},
                     RackProcess::Kind::kManyRacks};
  std::vector<Job> jobs_;
  std::mutex mutex_;
  std::vector<Group> made_;
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
  Planner plans(planner);
  for (const auto& [name, ranks] : groups) {
    keys.push_back(Add(name, ranks));
    ASSERT_EQ(keys.back().size(), ranks.size());
    sums.push_back(plans.SumsOf("wide", name, plans.Plan({ranks})[0]));
  }
  made_.clear();
  for (int round = 0; round < 4; ++round) {
    // Expect: the bits do not change while other groups come and go.
    if (round == 2) Add("comes", {1, 3, 5});
    if (round == 3) RemoveMade();
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
