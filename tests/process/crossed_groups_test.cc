// Groups whose members start and await operations in crossed order, with one slot on each lane.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "phub/client.h"
#include "phub/group.h"
#include "phub/pool.h"
#include "tests/process/daemon_process.h"
#include "tests/process/join_all.h"

namespace phub::process {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint32_t kChunk = 4096;
constexpr std::uint32_t kMembers = 2;
constexpr std::size_t kManyChunks = 40 * kChunk / sizeof(float);
constexpr std::chrono::seconds kCrossedPatience{60};

// Two groups of the same two ranks, over tcp, where each gradient needs a slot.
class CrossedGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    jobs_ = JoinAll(daemon_.endpoint(), {.job = "crossed",
                                         .world_size = kMembers,
                                         .chunk_bytes = kChunk,
                                         .staging_bytes = kChunk,
                                         .transport = TransportChoice::kTcp});
    ASSERT_EQ(jobs_.size(), kMembers);
    const std::uint32_t ranks[] = {0, 1};
    for (Job& job : jobs_) {
      for (const char* const name : {"first", "second"}) {
        Result<Group> group = job.NewGroup(name, ranks);
        ASSERT_TRUE(group.ok()) << ToString(group.status());
        groups_.push_back(*std::move(group));
      }
    }
  }
  Group& GroupOf(std::uint32_t rank, std::size_t index) { return groups_[2 * rank + index]; }
  Key AddKey(std::uint32_t rank, std::size_t group, const KeyOptions& options) {
    Result<Key> key = GroupOf(rank, group).AddKey("key", f32, kManyChunks, options);
    EXPECT_TRUE(key.ok()) << ToString(key.status());
    return *std::move(key);
  }
  static void ExpectComplete(const Handle& handle) {
    const Status status = handle.Wait(kCrossedPatience);
    EXPECT_TRUE(status.ok()) << ToString(status);
  }

  DaemonProcess daemon_{{"--cores", "1", "--pin", "off"}};
  std::vector<Job> jobs_;
  std::vector<Group> groups_;
};

TEST_F(CrossedGroups, SumsMayStartInAnyOrder) {
  std::vector<Key> keys;  // of rank 0, then of rank 1
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    for (const std::size_t group : {0u, 1u}) {
      keys.push_back(AddKey(rank, group, {}));
      std::ranges::fill(keys.back().gradients<float>(), static_cast<float>(rank + 1));
    }
  }
  for (int round = 0; round < 5; ++round) {
    std::vector<Handle> handles;
    for (const std::size_t index : {0u, 1u, 3u, 2u}) handles.push_back(keys[index].PushPull());
    for (const Handle& handle : handles) ExpectComplete(handle);
    for (const Key& key : keys) EXPECT_THAT(key.parameters<float>(), Each(3.0f));
  }
}

// Rank 1 sends in the first group, and both exchange in the second one before rank 0 receives. What
// rank 1 sends first must not keep its slot.
TEST_F(CrossedGroups, ABroadcastDoesNotBlockAnotherGroup) {
  std::vector<Pool> pools;
  std::vector<Key> sums;
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    Result<Pool> pool = Pool::Add(GroupOf(rank, 0),
                                  {.name = "pool", .capacity_bytes = kManyChunks * sizeof(float)});
    ASSERT_TRUE(pool.ok()) << ToString(pool.status());
    pools.push_back(*std::move(pool));
    sums.push_back(AddKey(rank, 1, {}));
    std::ranges::fill(sums.back().gradients<float>(), static_cast<float>(rank + 1));
  }
  std::vector<float> sent(kManyChunks, 5.0f), received(kManyChunks, 0.0f);
  const Handle sends = pools[1].Broadcast(std::span(sent), 1);
  const Handle sums_there = sums[1].PushPull();
  ExpectComplete(sums[0].PushPull());
  ExpectComplete(sums_there);
  EXPECT_FALSE(sends.Test());
  ExpectComplete(pools[0].Broadcast(std::span(received), 1));
  ExpectComplete(sends);
  EXPECT_THAT(received, Each(5.0f));
}

// The same for the parts of a gather.
TEST_F(CrossedGroups, APartDoesNotBlockAnotherGroup) {
  std::vector<Key> gathers, sums;
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    gathers.push_back(AddKey(rank, 0, {.movement = Movement::kGather}));
    std::ranges::fill(gathers.back().gradients<float>(), static_cast<float>(rank + 10));
    sums.push_back(AddKey(rank, 1, {}));
    std::ranges::fill(sums.back().gradients<float>(), static_cast<float>(rank + 1));
  }
  const Handle gathers_there = gathers[1].PushPull();
  const Handle sums_there = sums[1].PushPull();
  ExpectComplete(sums[0].PushPull());
  ExpectComplete(sums_there);
  EXPECT_FALSE(gathers_there.Test());
  ExpectComplete(gathers[0].PushPull());
  ExpectComplete(gathers_there);
  const std::span<const float> all = gathers[0].parameters<float>();
  EXPECT_THAT(all.first(kManyChunks / 2), Each(10.0f));
  EXPECT_THAT(all.last(kManyChunks / 2), Each(11.0f));
}

// Each rank waits for its own group first. Shorter waits only say that the round is in flight.
TEST_F(CrossedGroups, WaitsInCrossedOrderNameTheCycleAtTheTimeout) {
  std::vector<Key> keys;  // of rank 0, then of rank 1
  for (std::uint32_t rank = 0; rank < kMembers; ++rank)
    for (const std::size_t group : {0u, 1u}) keys.push_back(AddKey(rank, group, {}));
  std::vector<Handle> handles;
  for (const std::size_t index : {0u, 3u}) handles.push_back(keys[index].PushPull());
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    const std::string own = rank == 0 ? "first" : "second";
    const std::string other = rank == 0 ? "second" : "first";
    const std::string in_flight = fmt::format(
        "key key of group {} of job crossed, rank {}: iteration 1 is still in flight", own, rank);
    EXPECT_EQ(handles[rank].Wait(std::chrono::milliseconds(999)).message(), in_flight);
    const std::string cycle = fmt::format(
        "{}; it waits for rank {}; ranks wait for each other: rank {} has pushed key key of group "
        "{}, which waits for rank {}; rank {} has pushed key key of group {}, which waits for rank "
        "{}",
        in_flight, 1 - rank, rank, own, 1 - rank, 1 - rank, other, rank);
    const Status late = handles[rank].Wait(std::chrono::seconds(1));
    EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(late.message(), cycle);
    EXPECT_EQ(handles[rank].Explain().message(), cycle);
  }
  for (const std::size_t index : {1u, 2u}) handles.push_back(keys[index].PushPull());
  for (const Handle& handle : handles) ExpectComplete(handle);
  EXPECT_TRUE(handles[0].Explain().ok());
}

class CrossedPools : public CrossedGroups {
 protected:
  static constexpr std::uint64_t kBytes = 4 * kChunk;

  void AddPools(std::chrono::milliseconds timeout) {
    for (Group& group : groups_) {
      Result<Pool> pool = Pool::Add(
          group, {.name = "pool", .capacity_bytes = kBytes, .depth = 1, .timeout = timeout});
      ASSERT_TRUE(pool.ok()) << ToString(pool.status());
      pools_.push_back(*std::move(pool));
    }
  }
  Pool& PoolOf(std::uint32_t rank, std::size_t group) { return pools_[2 * rank + group]; }
  Handle Start(std::uint32_t rank, std::size_t group, std::vector<float>& values) {
    return PoolOf(rank, group).AllReduce(std::span<const float>(values), std::span(values));
  }

  std::vector<Pool> pools_;
};

// Rank 0 wants a second round of the first group before it starts one of the second; rank 1 does
// the reverse.
TEST_F(CrossedPools, RanksThatWaitForEachOtherAreNamedAtTheTimeout) {
  AddPools(std::chrono::milliseconds(500));
  std::vector<float> values[kMembers], more[kMembers];
  std::vector<Handle> begun;
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    values[rank].assign(100, 1.0f);
    more[rank].assign(100, 2.0f);
    begun.push_back(Start(rank, rank, values[rank]));
  }
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    const Status late = Start(rank, rank, more[rank]).Wait();
    EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
    const char* const own = rank == 0 ? "first" : "second";
    const char* const other = rank == 0 ? "second" : "first";
    EXPECT_EQ(late.message(),
              fmt::format("pool pool of group {} of job crossed, rank {}: operation 1 has waited "
                          "500 ms (the pool's timeout) for a free round: operation 0 has not "
                          "completed, in key pool/0 of group {}, and the pool's depth is 1; it "
                          "waits for rank {}; ranks wait for each other: rank {} has pushed key "
                          "pool/0 of group {} (operation 0), which waits for rank {}; rank {} has "
                          "pushed key pool/0 of group {} (operation 0), which waits for rank {}",
                          own, rank, own, 1 - rank, rank, own, 1 - rank, 1 - rank, other, rank));
  }
  // Nothing was started, so the job goes on.
  std::vector<float> theirs[kMembers];
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    theirs[rank].assign(100, 3.0f);
    begun.push_back(Start(rank, 1 - rank, theirs[rank]));
  }
  for (const Handle& handle : begun) ExpectComplete(handle);
  begun.clear();
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) begun.push_back(Start(rank, 0, more[rank]));
  for (const Handle& handle : begun) ExpectComplete(handle);
  EXPECT_THAT(more[0], Each(4.0f));
}

// The first round is in flight: the other rank will wait for the rest.
TEST_F(CrossedPools, AnOperationThatIsStartedInPartEndsTheJobAtTheTimeout) {
  AddPools(std::chrono::milliseconds(300));
  std::vector<float> values(2 * kBytes / sizeof(float), 1.0f);
  const Status late = Start(0, 0, values).Wait();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << ToString(late);
  EXPECT_THAT(late.message(), HasSubstr("it waits for rank 1"));
  EXPECT_FALSE(jobs_[0].Barrier().ok());
  EXPECT_FALSE(jobs_[1].Barrier().ok());
}

TEST_F(CrossedPools, ATimeoutMustNotBeNegative) {
  const Result<Pool> refused =
      Pool::Add(GroupOf(0, 0), {.name = "pool", .timeout = std::chrono::milliseconds(-1)});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "pool pool: timeout is -1 ms; it must be 0 (no limit) or more");
}

}  // namespace
}  // namespace phub::process
