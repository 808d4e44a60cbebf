// Jobs over four racks whose groups have members in several of them. All ranks are in one thread.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <phub/group.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/plan/around.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "phub/v1/admin.pb.h"
#include "server/core/exchange/rack_plan.h"
#include "tests/process/group_calls.h"
#include "tests/process/join_all.h"
#include "tests/process/rack_process.h"
#include "tests/support/rack_sum.h"

namespace phub::process {

using Ranks = std::vector<std::uint32_t>;

inline constexpr std::uint32_t kRackCount = 4;
inline constexpr std::uint32_t kRanksInRack = 2;
inline constexpr std::uint32_t kAllRanks = kRackCount * kRanksInRack;
inline constexpr std::uint32_t kCoresInRack = 2;
inline constexpr std::uint32_t kChunkBytes = 16 << 10;
inline constexpr std::size_t kWideElements = 20'000;  // five chunks
inline constexpr std::chrono::seconds kWideWait{60};

// Plans groups as rack 0 does: around the plans of the job and of the groups before.
class Planner {
 public:
  explicit Planner(const std::string& planner, std::uint32_t aggregators = 0)
      : planner_(planner),
        topology_(plan::Generate(
            fmt::format("switch:{}{}", kRackCount, aggregators > 0 ? ",aggregate" : ""))) {
    for (std::uint32_t i = 0; i < aggregators; ++i)
      aggregators_.push_back(
          server::exchange::NodeOf(*topology_, server::RackIndex{kRackCount + i}));
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
    auto plans = plan::PlanAround(
        *topology_, racks, times_,
        {.makers = makers, .size_bytes = std::int64_t{64} << 20, .aggregators = aggregators_});
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
  const absl::StatusOr<plan::Topology> topology_;
  std::vector<plan::NodeIndex> aggregators_;
  plan::LinkTimes times_;
};

inline std::vector<float> ExpectedSum(const std::vector<oracle::RackSum>& sums, const Ranks& ranks,
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

class WideGroups : public ::testing::Test {
 protected:
  explicit WideGroups(std::uint32_t aggregators = 0)
      : racks_(kRackCount + aggregators, {"--cores", std::to_string(kCoresInRack), "--pin", "off"},
               RackProcess::Kind::kManyRacks, aggregators) {}

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
  // A round of all groups at once, compared with the sums bit by bit.
  struct MadeGroup {
    Ranks ranks;
    std::vector<Key> keys;
    std::vector<oracle::RackSum> sums;
  };
  void ExchangeAll(std::vector<MadeGroup>& groups, int round) {
    std::vector<Handle> handles;
    for (MadeGroup& group : groups) {
      for (std::size_t m = 0; m < group.keys.size(); ++m) {
        const std::span<float> gradients = group.keys[m].gradients<float>();
        for (std::size_t e = 0; e < kWideElements; ++e)
          gradients[e] = OrderedValue(group.ranks[m], e, round);
        handles.push_back(group.keys[m].PushPull());
      }
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kWideWait);
      ASSERT_TRUE(status.ok()) << ToString(status) << racks_.Outputs();
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::vector<float> expected = ExpectedSum(groups[g].sums, groups[g].ranks, round);
      for (const Key& key : groups[g].keys) {
        const auto result = key.parameters<float>();
        ASSERT_EQ(std::memcmp(result.data(), expected.data(), kWideElements * sizeof(float)), 0)
            << "group " << g << " round " << round;
      }
    }
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

  RackProcess racks_;
  std::vector<Job> jobs_;
  std::mutex mutex_;
  std::vector<Group> made_;
};

}  // namespace phub::process
