// phub::Pool::Broadcast(), in pools of jobs and of groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "phub/group.h"
#include "tests/process/pool_fixture.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class PoolBroadcast : public PoolsOfRanks {
 protected:
  static constexpr std::uint32_t kRanks = 3;

  PoolBroadcast() : PoolsOfRanks(kRanks) {}
};
INSTANTIATE_TEST_SUITE_P(Transports, PoolBroadcast,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

TEST_P(PoolBroadcast, EveryRankGetsTheRootsBytes) {
  Join("lengths");
  const std::size_t lengths[] = {
      1, 7, kPoolRoundBytes, kPoolRoundBytes + 1, 7 * kPoolRoundBytes + 5, 3};
  OnRanks({0, 1, 2}, [&](std::uint32_t rank) {
    std::vector<std::vector<std::uint8_t>> values, expected;
    std::vector<std::vector<double>> sums;
    std::vector<Handle> handles;
    for (std::uint32_t root = 0; root < kRanks; ++root) {
      for (const std::size_t length : lengths) {
        expected.emplace_back(length);
        std::iota(expected.back().begin(), expected.back().end(), static_cast<std::uint8_t>(root));
        values.push_back(rank == root ? expected.back() : std::vector<std::uint8_t>(length, 0));
        handles.push_back(pools_[rank].Broadcast(std::span(values.back()), root));
        // A reduction of the same pool in between.
        sums.emplace_back(length % 100 + 1, static_cast<double>(rank));
        handles.push_back(
            pools_[rank].AllReduce(std::span<const double>(sums.back()), std::span(sums.back())));
      }
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kPoolPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    EXPECT_EQ(values, expected);
    for (const auto& each : sums) EXPECT_THAT(each, Each(3.0));
  });
}

// A ring of messages: each rank sends to the next one before it receives.
TEST_P(PoolBroadcast, GroupsOfTwoRanksPassMessagesInOrder) {
  Join("pairs");
  constexpr int kMessages = 40;
  OnRanks({0, 1, 2}, [&](std::uint32_t rank) {
    // A rank makes its groups in the order of their names, so none waits for another.
    std::vector<Pool> with(kRanks, pools_[rank]);
    for (std::uint32_t low = 0; low < kRanks; ++low) {
      for (std::uint32_t high = low + 1; high < kRanks; ++high) {
        if (rank != low && rank != high) continue;
        const std::uint32_t members[] = {low, high};
        Result<Group> group =
            jobs_[rank].NewGroup("pair" + std::to_string(low * 10 + high), members);
        ASSERT_TRUE(group.ok()) << ToString(group.status());
        Result<Pool> pool = AddPoolTo(*group);
        ASSERT_TRUE(pool.ok()) << ToString(pool.status());
        with[rank == low ? high : low] = *std::move(pool);
      }
    }
    const std::uint32_t next = (rank + 1) % kRanks, last = (rank + 2) % kRanks;
    std::vector<std::vector<std::int32_t>> sent, received;
    std::vector<Handle> handles;
    for (int message = 0; message < kMessages; ++message) {
      const auto text = static_cast<std::int32_t>(100 * rank) + message;
      const auto other = static_cast<std::int32_t>(100 * last) + message;
      sent.emplace_back(100 * message + 1, text);
      received.emplace_back(100 * message + 1, -1);
      handles.push_back(with[next].Broadcast(std::span(sent.back()), rank));
      handles.push_back(with[last].Broadcast(std::span(received.back()), last));
      ASSERT_TRUE(handles.back().Wait(kPoolPatience).ok());
      EXPECT_THAT(received.back(), Each(other));
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kPoolPatience);
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
  });
}

TEST_P(PoolBroadcast, RanksThatDifferAreNamedWithBothOperations) {
  const auto expect = [&](const std::string& name, std::uint32_t root, std::size_t length,
                          const std::string& text) {
    Join(name);
    std::vector<float> values[2] = {std::vector<float>(5), std::vector<float>(length)};
    const Handle first = pools_[1].Broadcast(std::span(values[0]), 2);
    const Handle second = pools_[0].Broadcast(std::span(values[1]), root);
    EXPECT_THAT(
        ToString(first.Wait(kPoolPatience)),
        AllOf(
            HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(text),
            HasSubstr("operation 0 of the pool: broadcast of 5 elements of type f32 from rank 2")));
    EXPECT_FALSE(second.Wait(kPoolPatience).ok());
  };
  expect("roots", 0, 5, "broadcast of 5 elements of type f32 from rank 0");
  expect("sizes", 2, 6, "broadcast of 6 elements of type f32 from rank 2");
  Join("operations");
  std::vector<float> values(5);
  const Handle first = pools_[1].Broadcast(std::span(values), 2);
  const Handle second = pools_[2].AllReduce(std::span<const float>(values), std::span(values));
  EXPECT_THAT(ToString(first.Wait(kPoolPatience)),
              AllOf(HasSubstr("sum of 5 elements of type f32"), HasSubstr("broadcast of 5")));
  EXPECT_FALSE(second.Wait(kPoolPatience).ok());
}

TEST_P(PoolBroadcast, WrongArgumentsAreRefusedByName) {
  Join("wrong");
  std::vector<float> values(5);
  const auto refused = [&](Elements elements, std::uint32_t root) {
    return ToString(pools_[0].Broadcast(elements, root).Wait());
  };
  EXPECT_THAT(refused(std::span(values), 3),
              HasSubstr("pool pool of job wrong: root is 3, but its ranks are 0 to 2"));
  EXPECT_THAT(refused(std::span(values).first(0), 0), HasSubstr("0 elements"));
  EXPECT_THAT(refused({nullptr, 5, f32}, 0), HasSubstr("null"));
  OnRanks({0, 2}, [&](std::uint32_t rank) {
    const std::uint32_t members[] = {0, 2};
    Result<Group> group = jobs_[rank].NewGroup("ends", members);
    ASSERT_TRUE(group.ok()) << ToString(group.status());
    Result<Pool> pool = AddPoolTo(*group);
    ASSERT_TRUE(pool.ok()) << ToString(pool.status());
    std::vector<float> own(5, static_cast<float>(rank));
    EXPECT_THAT(ToString(pool->Broadcast(std::span(own), 1).Wait()),
                HasSubstr("root is 1, but its ranks are 0, 2"));
    // It did not count as an operation.
    EXPECT_TRUE(pool->Broadcast(std::span(own), 2).Wait(kPoolPatience).ok());
    EXPECT_THAT(own, Each(2.0f));
  });
}

}  // namespace
}  // namespace phub::process
