// Groups in jobs that span racks: their sums next to those of the whole job, and the death of a
// member.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <phub/group.h>
#include <phub/pool.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/group_calls.h"
#include "tests/process/join_all.h"
#include "tests/process/rack_expectations.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Members = std::vector<std::uint32_t>;

constexpr std::uint32_t kRanksPerRack = 3;
constexpr std::uint32_t kTwoRacks = 2;
constexpr std::uint32_t kRanksOfJob = kTwoRacks * kRanksPerRack;
constexpr std::size_t kElementsOfSum = 40'000;  // two chunks
constexpr std::chrono::seconds kGroupWait{60};

// Of ranks [begin, end) of `ranks`, one after the other.
float SumOf(const Members& ranks, std::size_t begin, std::size_t end, std::size_t element,
            int round) {
  float sum = OrderedValue(ranks[begin], element, round);
  for (std::size_t i = begin + 1; i < end; ++i) sum += OrderedValue(ranks[i], element, round);
  return sum;
}

// Two racks. All ranks are in this thread; ranks 0 to 2 are in rack 0.
class RackGroups : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void Join(const std::string& name, const std::string& plan) {
    jobs_ =
        JoinAll({racks_.endpoint(0), racks_.endpoint(1)},
                {.job = name, .world_size = kRanksOfJob, .transport = GetParam(), .plan = plan});
  }
  std::vector<Group> Make(const std::string& name, const Members& ranks) {
    return MakeGroup(jobs_, name, ranks);
  }
  // On every rank. The daemons of both racks have it once both have answered.
  std::vector<Key> AddToJob(const std::string& name) {
    std::vector<Key> keys;
    for (Job& job : jobs_) {
      auto key = job.AddKey(name, f32, kElementsOfSum, None{});
      EXPECT_TRUE(key.ok()) << ToString(key.status());
      if (key.ok()) keys.push_back(*std::move(key));
    }
    return keys;
  }
  static Handle Push(Key& key, std::uint32_t rank, int round) {
    const std::span<float> gradients = key.gradients<float>();
    for (std::size_t e = 0; e < kElementsOfSum; ++e) gradients[e] = OrderedValue(rank, e, round);
    return key.PushPull();
  }
  static void ExpectComplete(const std::vector<Handle>& handles) {
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kGroupWait);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
  }
  static void ExpectSum(const std::vector<Key>& keys, const std::vector<float>& expected,
                        const std::string& what) {
    for (const Key& key : keys) {
      const auto result = key.parameters<float>();
      ASSERT_EQ(std::memcmp(result.data(), expected.data(), kElementsOfSum * sizeof(float)), 0)
          << what;
    }
  }

  RackProcess racks_{kTwoRacks, {"--cores", "2", "--pin", "off"}, RackProcess::Kind::kManyRacks};
  std::vector<Job> jobs_;
};
INSTANTIATE_TEST_SUITE_P(Transports, RackGroups,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

// Groups in both racks, two of one name, next to keys of the whole job that were added before and
// after them. The racks have different numbers of groups, so core loops have other chunks and
// loads.
TEST_P(RackGroups, InsideRacksSumNextToKeysOfTheJob) {
  Join("inside", "sharded-star");
  ASSERT_EQ(jobs_.size(), kRanksOfJob);
  std::vector<std::vector<Key>> of_job = {AddToJob("before")};
  const std::vector<Members> members = {{0, 2}, {0, 1, 2}, {3, 4, 5}};
  std::vector<std::vector<Key>> keys;
  for (std::size_t g = 0; g < members.size(); ++g) {
    std::vector<Group> groups = Make(g == 1 ? "all" : "tensor", members[g]);
    ASSERT_EQ(groups.size(), members[g].size());
    keys.push_back(AddToGroup(groups, "sum", f32, kElementsOfSum));
  }
  of_job.push_back(AddToJob("after"));
  for (int round = 0; round < 3; ++round) {
    std::vector<Handle> handles;
    for (std::uint32_t rank = 0; rank < kRanksOfJob; ++rank) {
      handles.push_back(Push(of_job[0][rank], rank, round));
      for (std::size_t g = 0; g < members.size(); ++g) {
        const auto own = std::ranges::find(members[g], rank);
        if (own == members[g].end()) continue;
        handles.push_back(
            Push(keys[g][static_cast<std::size_t>(own - members[g].begin())], rank, round));
      }
      handles.push_back(Push(of_job[1][rank], rank, round));
    }
    ExpectComplete(handles);
    std::vector<float> expected(kElementsOfSum);
    for (std::size_t g = 0; g < members.size(); ++g) {
      for (std::size_t e = 0; e < kElementsOfSum; ++e)
        expected[e] = SumOf(members[g], 0, members[g].size(), e, round);
      ExpectSum(keys[g], expected, fmt::format("group {} round {}", g, round));
    }
    const Members all = {0, 1, 2, 3, 4, 5};
    for (std::size_t e = 0; e < kElementsOfSum; ++e)
      expected[e] = SumOf(all, 0, 3, e, round) + SumOf(all, 3, 6, e, round);
    for (const auto& each : of_job) ExpectSum(each, expected, fmt::format("job round {}", round));
  }
}

TEST_P(RackGroups, InsideARackHavePoolsAndPartsAndAreRemoved) {
  Join("kinds", "ring");
  ASSERT_EQ(jobs_.size(), kRanksOfJob);
  for (int i = 0; i < 3; ++i) {
    std::vector<Group> groups = Make("pair", {3, 5});
    std::vector<Key> pool = AddToGroup(groups, "pool", u8, 1 << 16, {.pooled = true});
    std::vector<Key> gathered =
        AddToGroup(groups, "gather", f32, 4, {.movement = Movement::kGather});
    std::vector<Handle> handles;
    const std::vector<std::int64_t> sent[2] = {{5, -7}, {3, 2}};
    std::vector<std::int64_t> received[2] = {{0, 0}, {0, 0}};
    for (std::size_t m = 0; m < 2; ++m) {
      handles.push_back(pool[m].AllReduce(std::span<const std::int64_t>(sent[m]),
                                          std::span<std::int64_t>(received[m]), Operation::kMin,
                                          0));
      std::ranges::fill(gathered[m].gradients<float>(), static_cast<float>(m + 1));
      handles.push_back(gathered[m].PushPull());
    }
    ExpectComplete(handles);
    for (const auto& result : received) EXPECT_THAT(result, ElementsAre(3, -7));
    for (const Key& key : gathered) EXPECT_THAT(key.parameters<float>(), ElementsAre(1, 1, 2, 2));
    std::vector<std::thread> threads;
    for (Group& group : groups)
      threads.emplace_back([&group] { EXPECT_EQ(ToString(group.Remove()), "OK"); });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(RackGroups, OtherKeysOutsideIterationsAreRefused) {
  Join("refused", "ring");
  ASSERT_EQ(jobs_.size(), kRanksOfJob);
  EXPECT_THAT(ToString(jobs_[0].AddKey("all", f32, 10, None{}, {.collective = true}).status()),
              HasSubstr("collective keys do not work in jobs that span racks, except in groups"));
}

// Rank 3 hangs before it pushes the group's key, and is killed.
TEST(RackGroupFaults, TheErrorOfADeadMemberNamesTheGroupInEveryRack) {
  RackProcess racks(kTwoRacks, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  std::vector<Process> trainers;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    std::vector<std::string> more = {"--plan", "ring", "--group", "2,3"};
    if (rank == 3) more.insert(more.end(), {"--group-stops-at", "3"});
    trainers.push_back(StartTrainer({.endpoint = racks.endpoint(rank / 2),
                                     .job = "training",
                                     .rank = rank,
                                     .world_size = 4,
                                     .iterations = 1'000'000,
                                     .more = more}));
  }
  for (const std::uint32_t rank : {2u, 3u})
    ASSERT_TRUE(WaitForIteration(trainers[rank], 2, 60 * kSecond)) << racks.Outputs();
  std::string stalls;
  while (stalls.find("sum of group pair") == std::string::npos) {
    stalls = racks.Ask(1, {"job", "stalls", "training"}).output;
    for (Process& each : trainers) ASSERT_TRUE(each.IsRunning()) << VerdictOf(each);
  }
  trainers[3].Signal(SIGKILL);
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    EXPECT_TRUE(trainers[rank].Wait(60 * kSecond).has_value());
    EXPECT_THAT(VerdictOf(trainers[rank]),
                AllOf(HasSubstr("rank 3 ("), HasSubstr("died"), HasSubstr("sum of group pair")))
        << rank;
  }
}

}  // namespace
}  // namespace phub::process
