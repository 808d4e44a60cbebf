// Groups: ranks of a job that exchange keys of their own, at the same time as other groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "phub/group.h"
#include "tests/process/daemon_process.h"
#include "tests/process/group_calls.h"
#include "tests/process/join_all.h"
#include "tests/support/http_client.h"
#include "tests/support/prometheus_text.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Ranks = std::vector<std::uint32_t>;

constexpr std::uint32_t kRanksOfJob = 4;
constexpr std::size_t kSumElements = 40'000;  // two chunks
constexpr std::chrono::seconds kGroupPatience{60};

std::vector<float> SerialSum(const Ranks& ranks, int round) {
  std::vector<float> sum(kSumElements);
  for (std::size_t i = 0; i < kSumElements; ++i) {
    sum[i] = OrderedValue(ranks[0], i, round);
    for (std::size_t r = 1; r < ranks.size(); ++r) sum[i] += OrderedValue(ranks[r], i, round);
  }
  return sum;
}

// All ranks are in this thread.
class Groups : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void Join(const std::string& name, std::uint32_t ranks = kRanksOfJob) {
    jobs_ =
        JoinAll(daemon_.endpoint(), {.job = name, .world_size = ranks, .transport = GetParam()});
    ASSERT_EQ(jobs_.size(), ranks);
  }
  std::vector<Group> Make(const std::string& name, const Ranks& ranks) {
    return MakeGroup(jobs_, name, ranks);
  }
  static void Remove(std::vector<Group>& groups) {
    std::vector<std::thread> threads;
    for (Group& group : groups) {
      threads.emplace_back([&group] {
        const Status status = group.Remove();
        EXPECT_TRUE(status.ok()) << ToString(status);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::uint16_t MetricsPort() {
    const std::string url = daemon_.Logged("metrics");  // "http://127.0.0.1:7780/metrics"
    const std::size_t port = url.find(':', 5) + 1;
    return static_cast<std::uint16_t>(std::stoul(url.substr(port)));
  }

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off", "--metrics-listen", "127.0.0.1:0"}};
  std::vector<Job> jobs_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Groups,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

TEST_P(Groups, OverlappingGroupsSumAtTheSameTime) {
  Join("overlapping");
  const std::vector<Ranks> members = {{0, 1}, {2, 3}, {0, 2}, {0, 1, 2, 3}};
  std::vector<std::vector<Key>> keys;
  for (std::size_t g = 0; g < members.size(); ++g) {
    std::vector<Group> groups = Make("group" + std::to_string(g), members[g]);
    ASSERT_EQ(groups.size(), members[g].size());
    EXPECT_EQ(groups.back().index(), members[g].size() - 1);
    keys.push_back(AddToGroup(groups, "sum", f32, kSumElements));
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<Handle> handles;
    // Ranks push in different orders: the first one in the order of groups, the next in reverse.
    for (std::uint32_t rank = 0; rank < kRanksOfJob; ++rank) {
      for (std::size_t i = 0; i < members.size(); ++i) {
        const std::size_t g = rank % 2 == 0 ? i : members.size() - 1 - i;
        const auto own = std::ranges::find(members[g], rank);
        if (own == members[g].end()) continue;
        Key& key = keys[g][static_cast<std::size_t>(own - members[g].begin())];
        const std::span<float> gradients = key.gradients<float>();
        for (std::size_t e = 0; e < kSumElements; ++e) gradients[e] = OrderedValue(rank, e, round);
        handles.push_back(key.PushPull());
      }
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kGroupPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    for (std::size_t g = 0; g < members.size(); ++g) {
      const std::vector<float> expected = SerialSum(members[g], round);
      for (const Key& key : keys[g]) {
        const auto result = key.parameters<float>();
        ASSERT_EQ(std::memcmp(result.data(), expected.data(), kSumElements * sizeof(float)), 0)
            << "group " << g << " round " << round;
      }
    }
  }
}

TEST_P(Groups, PartsBelongToMembersInTheirOrder) {
  Join("parts");
  std::vector<Group> groups = Make("parts", {1, 3});
  std::vector<Key> gathered = AddToGroup(groups, "gather", f32, 8, {.movement = Movement::kGather});
  std::vector<Key> reduced =
      AddToGroup(groups, "reduce", f32, 8, {.movement = Movement::kReduceScatter});
  std::vector<Key> scattered =
      AddToGroup(groups, "scatter", f32, 8, {.movement = Movement::kScatter, .root = 3});
  std::vector<Handle> handles;
  for (std::size_t m = 0; m < 2; ++m) {
    const float own = static_cast<float>(m + 1);
    std::ranges::fill(gathered[m].gradients<float>(), own);
    std::ranges::fill(reduced[m].gradients<float>(), own);
    if (m == 1)
      for (std::size_t i = 0; i < 8; ++i)
        scattered[m].gradients<float>()[i] = static_cast<float>(i);
    handles.push_back(gathered[m].PushPull());
    handles.push_back(reduced[m].PushPull());
    handles.push_back(scattered[m].PushPull());
  }
  for (const Handle& handle : handles) {
    const Status status = handle.Wait(kGroupPatience);
    ASSERT_TRUE(status.ok()) << ToString(status);
  }
  for (std::size_t m = 0; m < 2; ++m) {
    EXPECT_THAT(gathered[m].parameters<float>(), ElementsAre(1, 1, 1, 1, 2, 2, 2, 2));
    EXPECT_THAT(reduced[m].parameters<float>(), ElementsAre(3, 3, 3, 3));
  }
  EXPECT_THAT(scattered[0].parameters<float>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(scattered[1].parameters<float>(), ElementsAre(4, 5, 6, 7));
}

TEST_P(Groups, PoolsBroadcastsAndKeysOfTheJobWorkNextToThem) {
  Join("mixed");
  std::vector<Group> groups = Make("mixed", {1, 2});
  std::vector<Key> pool = AddToGroup(groups, "pool", u8, 1 << 16, {.pooled = true});
  std::vector<Key> values = AddToGroup(groups, "values", f32, 5);
  std::vector<Key> of_job;
  for (Job& job : jobs_) {
    auto key = job.AddKey("values", f32, 5, None{}, {.collective = true});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    of_job.push_back(*std::move(key));
  }
  std::vector<Handle> handles;
  const std::vector<std::int64_t> sent[2] = {{5, -7}, {3, 2}};
  std::vector<std::int64_t> received[2] = {{0, 0}, {0, 0}};
  const std::vector<float> from_root(5, 2.5f);
  for (std::size_t m = 0; m < 2; ++m) {
    handles.push_back(pool[m].AllReduce(std::span<const std::int64_t>(sent[m]),
                                        std::span<std::int64_t>(received[m]), Operation::kMin, 0));
    handles.push_back(jobs_[m + 1].Broadcast(values[m], 2, std::span<const float>(from_root)));
  }
  for (Key& key : of_job) {
    std::ranges::fill(key.gradients<float>(), 1.0f);
    handles.push_back(key.PushPull());
  }
  for (const Handle& handle : handles) {
    const Status status = handle.Wait(kGroupPatience);
    ASSERT_TRUE(status.ok()) << ToString(status);
  }
  for (const auto& result : received) EXPECT_THAT(result, ElementsAre(3, -7));
  for (const Key& key : values) EXPECT_THAT(key.parameters<float>(), Each(2.5f));
  for (const Key& key : of_job) EXPECT_THAT(key.parameters<float>(), Each(4.0f));
  EXPECT_THAT(ToString(jobs_[1].Broadcast(values[0], 0).Wait()),
              HasSubstr("root 0 is not a member of the group"));
}

TEST_P(Groups, OverSharedMemoryGradientsStayInPlaceWhileGroupsComeAndGo) {
  Join("in_place", 3);
  std::vector<Group> kept = Make("kept", {0, 1});
  std::vector<Key> sums = AddToGroup(kept, "sum", f32, kSumElements);
  const auto exchange = [&](std::vector<Key>& keys, float value) {
    std::vector<Handle> handles;
    for (Key& key : keys) {
      std::ranges::fill(key.gradients<float>(), value);
      handles.push_back(key.PushPull());
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kGroupPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    for (const Key& key : keys) EXPECT_THAT(key.parameters<float>(), Each(2.0f * value));
  };
  for (int i = 0; i < 5; ++i) {
    std::vector<Group> first = Make("first", {0, 2});
    std::vector<Group> second = Make("second", {0, 1});
    std::vector<Key> of_first = AddToGroup(first, "sum", f32, 1000);
    std::vector<Key> of_second = AddToGroup(second, "sum", f32, 2000);
    exchange(of_first, 1.0f);
    Remove(first);  // before the later one
    exchange(of_second, 2.0f);
    exchange(sums, 3.0f);
    Remove(second);
  }
  const auto answer = testing::GetMetrics(MetricsPort(), 30 * kSecond);
  ASSERT_EQ(answer.code, 200);
  const testing::PrometheusText metrics = testing::ReadPrometheusText(answer.body);
  const double gradients = metrics.Sum("phub_gradients_total");
  EXPECT_GE(gradients, 5.0 * 2 * 3);
  EXPECT_EQ(metrics.Sum("phub_gradients_in_place_total"),
            GetParam() == TransportChoice::kSharedMemory ? gradients : 0);
}

TEST_P(Groups, HaveFiguresOfTheirOwn) {
  Join("figures");
  std::vector<Group> small = Make("small", {0, 2});
  std::vector<Group> large = Make("large", {1, 2, 3});
  std::vector<Key> of_small = AddToGroup(small, "sum", f32, 1000);
  std::vector<Key> of_large =
      AddToGroup(large, "sum", f32, kSumElements, {.priority_class = PriorityClass::kTensor});
  std::vector<Handle> handles;
  for (std::vector<Key>* const keys : {&of_small, &of_large})
    for (Key& key : *keys) handles.push_back(key.PushPull());
  for (const Handle& handle : handles) ASSERT_TRUE(handle.Wait(kGroupPatience).ok());
  const auto answer = testing::GetMetrics(MetricsPort(), 30 * kSecond);
  ASSERT_EQ(answer.code, 200);
  const testing::PrometheusText metrics = testing::ReadPrometheusText(answer.body);
  const std::map<std::string, std::string> labels = {{"job", "figures"}, {"group", "large"}};
  EXPECT_EQ(metrics.Sum("phub_group_gradient_bytes_total", labels), 3.0 * 4 * kSumElements);
  EXPECT_EQ(metrics.Sum("phub_group_rounds_total", labels), 2);  // of chunks
  EXPECT_EQ(metrics.Sum("phub_group_reply_bytes_total", labels), 3.0 * 4 * kSumElements);
  EXPECT_EQ(metrics.Sum("phub_group_gradient_bytes_total", {{"group", "small"}}), 2.0 * 4 * 1000);
  // In the text: group, id, ranks, class, keys, pushed, rounds.
  const std::string text = daemon_.Ask({"job", "get", "figures"}).output;
  EXPECT_THAT(text, ContainsRegex("small +1 +0, 2 +data +1 +7.81 KiB +1 "));
  EXPECT_THAT(text, ContainsRegex("large +2 +1, 2, 3 +tensor +1 +469 KiB +2 "));
  Remove(small);
  EXPECT_THAT(daemon_.Ask({"job", "get", "figures"}).output, Not(HasSubstr("small")));
}

TEST_P(Groups, AreMadeAndRemovedInALoop) {
  Join("loop", 2);
  std::vector<Group> stays = Make("stays", {0, 1});
  std::vector<Key> stay = AddToGroup(stays, "a", f32, 10);
  for (int i = 0; i < 20; ++i) {
    std::vector<Group> groups = Make("pair", {0, 1});
    std::vector<Key> keys = AddToGroup(groups, "a", f32, kSumElements);
    std::vector<Key> more = AddToGroup(groups, "b", f32, 3);
    std::vector<Handle> handles;
    for (std::size_t m = 0; m < 2; ++m) {
      std::ranges::fill(keys[m].gradients<float>(), static_cast<float>(i));
      std::ranges::fill(more[m].gradients<float>(), 1.0f);
      handles.push_back(keys[m].PushPull());
      handles.push_back(more[m].PushPull());
    }
    for (const Handle& handle : handles) ASSERT_TRUE(handle.Wait(kGroupPatience).ok());
    EXPECT_THAT(keys[1].parameters<float>(), Each(2.0f * static_cast<float>(i)));
    Remove(groups);
    EXPECT_THAT(ToString(keys[0].PushPull().Wait()), HasSubstr("a of group pair"));
    EXPECT_FALSE(groups[0].AddKey("c", f32, 1).ok());
  }
  std::vector<Handle> handles;
  for (Key& key : stay) handles.push_back(key.PushPull());
  for (const Handle& handle : handles) EXPECT_TRUE(handle.Wait(kGroupPatience).ok());
}

// The daemon uses numbers of removed keys again, maybe before a member knows of the removal.
TEST_P(Groups, NewGroupsDoNotWaitForThoseThatAreBeingRemoved) {
  Join("follow", 2);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 40; ++i) {
    std::vector<Group> groups = Make("group" + std::to_string(i), {0, 1});
    std::vector<Key> keys = AddToGroup(groups, "a", f32, 100);
    std::vector<Key> of_job;
    if (i % 8 == 0) {
      for (Job& job : jobs_) {
        auto key = job.AddKey("key" + std::to_string(i), f32, 10, None{}, {.collective = true});
        ASSERT_TRUE(key.ok()) << ToString(key.status());
        of_job.push_back(*std::move(key));
      }
    }
    std::vector<Handle> handles;
    for (std::vector<Key>* const each : {&keys, &of_job})
      for (Key& key : *each) handles.push_back(key.PushPull());
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kGroupPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    for (Group& group : groups)
      threads.emplace_back([group]() mutable { EXPECT_EQ(ToString(group.Remove()), "OK"); });
  }
}

TEST_P(Groups, ErrorsNameTheGroup) {
  Join("errors");
  EXPECT_THAT(ToString(jobs_[1].NewGroup("pair", Ranks{0, 2}).status()),
              AllOf(HasSubstr("group pair of job errors, rank 1"), HasSubstr("not a member")));
  EXPECT_THAT(ToString(jobs_[1].NewGroup("pair", Ranks{1, 4}).status()),
              HasSubstr("rank 4 must be less than world_size 4"));
  EXPECT_THAT(ToString(jobs_[1].NewGroup("pair", Ranks{1, 1}).status()),
              HasSubstr("rank 1 is given twice"));
  const std::vector<GroupSpec> many(65, {.name = "many", .ranks = {0, 1}});
  EXPECT_THAT(ToString(jobs_[1].NewGroups(many).status()),
              HasSubstr("65 groups were declared with one call, and at most 64 can be"));
  std::vector<Group> groups = Make("pair", {1, 3});
  EXPECT_THAT(ToString(jobs_[1].NewGroup("pair", Ranks{1, 2}).status()),
              HasSubstr("already a member of a group of that name"));
  ASSERT_TRUE(groups[0].AddKey("a", f32, 4).ok());
  EXPECT_THAT(ToString(groups[0].AddKey("a", f32, 4).status()),
              HasSubstr("already has a key a of group pair"));
  // Expect: the members that differ are both named, and the whole job ends.
  const auto other = groups[1].AddKey("a", f32, 5);
  EXPECT_THAT(ToString(other.status()), AllOf(HasSubstr("rank 1"), HasSubstr("rank 3"),
                                              HasSubstr("group pair (ranks 1, 3)")));
}

TEST_P(Groups, AMemberThatLeavesEndsTheJobAndTheErrorNamesTheGroup) {
  Join("dead", 2);
  std::vector<Group> groups = Make("pair", {0, 1});
  std::vector<Key> keys = AddToGroup(groups, "a", f32, 4);
  const Handle handle = keys[0].PushPull();
  (void)jobs_[1].Leave();  // an error if the job's fault, which it causes, arrives first
  EXPECT_THAT(ToString(handle.Wait(kGroupPatience)),
              AllOf(HasSubstr("rank 1"), HasSubstr("a of group pair")));
}

}  // namespace
}  // namespace phub::process
