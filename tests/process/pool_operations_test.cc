// phub::Pool: operations that take turns on pooled keys, and operations of several rounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/pool_fixture.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint64_t kRoundElements = kPoolRoundBytes / sizeof(float);

class PoolOperations : public PoolsOfRanks {
 protected:
  static constexpr std::uint32_t kRanks = 2;
  static constexpr std::uint32_t kDepth = kPoolDepth;

  PoolOperations() : PoolsOfRanks(kRanks) {}
  template <typename Body>
  static void OnEachRank(Body body) {
    OnRanks({0, 1}, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, PoolOperations,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

TEST_P(PoolOperations, OperationsOfAnyLengthRunInOrder) {
  Join("lengths");
  // One element; less and more than a chunk; exactly one, two and seven rounds, and more.
  const std::size_t lengths[] = {1,
                                 kRoundElements - 1,
                                 kRoundElements,
                                 kRoundElements + 1,
                                 2 * kRoundElements,
                                 7 * kRoundElements,
                                 7 * kRoundElements + 5,
                                 kRoundElements / 2 + 100,
                                 3};
  OnEachRank([&](std::uint32_t rank) {
    std::vector<std::vector<float>> values, results;
    std::vector<Handle> handles;
    std::vector<float> expected;
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const std::size_t length : lengths) {
        const auto first = static_cast<float>(expected.size());
        values.emplace_back(length, first + static_cast<float>(rank));
        results.emplace_back(length, -1.0f);
        const bool adds = expected.size() % 2 == 0;
        const bool in_place = expected.size() % 3 == 1;
        if (in_place) results.back() = values.back();
        const std::span<const float> sent = in_place ? results.back() : values.back();
        expected.push_back(adds ? 2 * first + 1 : first + 1);
        handles.push_back(pools_[rank].AllReduce(sent, std::span(results.back()),
                                                 adds ? Operation::kSum : Operation::kMax));
      }
    }
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const Status status = handles[i].Wait(kPoolPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
      EXPECT_TRUE(handles[i].Test());
      EXPECT_THAT(results[i], Each(expected[i])) << i;
    }
  });
}

TEST_P(PoolOperations, RanksThatDifferInLengthFailInTheFirstRound) {
  const auto expect = [&](const std::string& name, std::size_t length, std::size_t other_length,
                          const std::string& text, const std::string& other_text) {
    Join(name);
    std::vector<float> values(3 * kRoundElements, 1.0f), results[2] = {values, values};
    const std::size_t lengths[] = {length, other_length};
    Handle handles[2];
    // The later rounds would be on other keys, where nobody waits.
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      handles[rank] = pools_[rank].AllReduce({values.data(), lengths[rank], f32},
                                             {results[rank].data(), lengths[rank], f32});
    EXPECT_THAT(
        ToString(handles[0].Wait(kPoolPatience)),
        AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(text), HasSubstr(other_text)));
    EXPECT_FALSE(handles[1].Wait(kPoolPatience).ok());
  };
  // Their first rounds have the same length.
  expect("rounds", kRoundElements, 2 * kRoundElements,
         "operation 0 of the pool: sum of 32768 elements of type f32",
         "sum of 32768 elements of type f32, and 1 more round");
  expect("more", 2 * kRoundElements + 7, 2 * kRoundElements + 8,
         "sum of 7 elements of type f32, and 2 more rounds",
         "sum of 8 elements of type f32, and 2 more rounds");
}

TEST_P(PoolOperations, OnlyDepthRoundsAreInFlight) {
  Join("depth");
  std::vector<float> values(10, 1.0f), results(10 * (kDepth + 1));
  std::vector<Handle> handles;
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    EXPECT_FALSE(pools_[0].WouldWait());
    handles.push_back(pools_[0].AllReduce(std::span<const float>(values),
                                          std::span(results).subspan(10 * i, 10)));
  }
  EXPECT_TRUE(pools_[0].WouldWait());
  EXPECT_FALSE(pools_[1].WouldWait({values.data(), kDepth * kRoundElements, f32}));
  EXPECT_TRUE(pools_[1].WouldWait({values.data(), kDepth * kRoundElements + 1, f32}));
  EXPECT_THAT(ToString(handles[0].Cancel()), HasSubstr("cannot be cancelled"));
  EXPECT_FALSE(handles[0].Test());
  std::thread waits([&] {
    handles.push_back(pools_[0].AllReduce(std::span<const float>(values),
                                          std::span(results).subspan(10 * kDepth, 10)));
  });
  std::vector<float> others(10);
  for (std::uint32_t i = 0; i <= kDepth; ++i)
    EXPECT_TRUE(pools_[1]
                    .AllReduce(std::span<const float>(values), std::span(others))
                    .Wait(kPoolPatience)
                    .ok());
  waits.join();
  for (const Handle& handle : handles) EXPECT_TRUE(handle.Wait(kPoolPatience).ok());
  EXPECT_THAT(results, Each(2.0f));
}

TEST_P(PoolOperations, AWaitEndsWithTheJob) {
  Join("ends");
  std::vector<float> values(10 * kRoundElements, 1.0f), results(10 * kRoundElements);
  std::thread waits([&] {
    const Handle handle = pools_[0].AllReduce(std::span<const float>(values), std::span(results));
    EXPECT_EQ(handle.Wait(kPoolPatience).code(), StatusCode::kCancelled);
  });
  while (!pools_[0].WouldWait()) std::this_thread::yield();
  (void)jobs_[0].Leave();
  waits.join();
}

TEST_P(PoolOperations, PoolsAreRemovedAndAddedAgain) {
  Join("removed");
  for (int i = 0; i < 3; ++i) {
    OnEachRank([&](std::uint32_t rank) {
      std::vector<std::int64_t> values(100, 5), results(100);
      EXPECT_TRUE(pools_[rank]
                      .AllReduce(std::span<const std::int64_t>(values), std::span(results))
                      .Wait(kPoolPatience)
                      .ok());
      EXPECT_THAT(results, Each(10));
      const Status status = pools_[rank].Remove(jobs_[rank]);
      EXPECT_TRUE(status.ok()) << ToString(status);
      const Handle handle =
          pools_[rank].AllReduce(std::span<const std::int64_t>(values), std::span(results));
      EXPECT_THAT(ToString(handle.Wait()), HasSubstr("the key was removed"));
    });
    pools_.clear();
    for (Job& job : jobs_) AddPool(job);
  }
}

TEST_P(PoolOperations, WrongArgumentsAreRefusedByName) {
  Join("wrong");
  std::vector<float> values(11, 1.0f), results(10);
  const auto refused = [&](ConstElements sent, Elements received, Operation operation) {
    return ToString(pools_[0].AllReduce(sent, received, operation).Wait());
  };
  const std::span<float> all(results), memory(values), part = memory.first(10);
  EXPECT_THAT(refused(std::span<const float>(), all, Operation::kSum),
              AllOf(HasSubstr("pool pool of job wrong"), HasSubstr("0 elements")));
  EXPECT_THAT(refused(part, all.subspan(1), Operation::kSum),
              HasSubstr("10 elements, but 9 parameters were given"));
  EXPECT_THAT(refused(part, memory.last(10), Operation::kSum), HasSubstr("overlap"));
  std::vector<std::int32_t> integers(10), means(10);
  EXPECT_THAT(refused(std::span<const std::int32_t>(integers), std::span(means), Operation::kMean),
              HasSubstr("kMean is not defined for type i32"));
  // None of them counts as an operation.
  const Handle handle = pools_[0].AllReduce(part, all);
  std::vector<float> others(10);
  EXPECT_TRUE(pools_[1].AllReduce(part, std::span(others)).Wait(kPoolPatience).ok());
  EXPECT_TRUE(handle.Wait(kPoolPatience).ok());

  const auto added = [&](const PoolOptions& options) {
    return ToString(Pool::Add(jobs_[0], options).status());
  };
  EXPECT_THAT(added({.name = "p", .depth = 0}), HasSubstr("depth is 0; it must be 1 to 64"));
  EXPECT_THAT(added({.name = "p", .depth = 65}), HasSubstr("depth is 65"));
  EXPECT_THAT(added({.name = "p", .capacity_bytes = 7}), HasSubstr("capacity_bytes is 7"));
  EXPECT_THAT(added({.name = "pool"}), HasSubstr("already has a key pool/0"));
}

}  // namespace
}  // namespace phub::process
