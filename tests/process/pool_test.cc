// Pooled keys: all-reduces whose type, operation and length belong to the round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/join_all.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint64_t kCapacity = 1 << 20;  // 16 chunks

// Both ranks are in this thread.
class Pools : public ::testing::TestWithParam<TransportChoice> {
 protected:
  static constexpr std::uint32_t kRanks = 2;
  static constexpr std::uint32_t kDepth = 3;

  void Join(const std::string& name) {
    slots_.clear();
    jobs_ =
        JoinAll(daemon_.endpoint(), {.job = name, .world_size = kRanks, .transport = GetParam()});
    ASSERT_EQ(jobs_.size(), kRanks);
    std::vector<KeySpec> specs;
    for (std::uint32_t slot = 0; slot < kDepth; ++slot)
      specs.push_back({.name = "pool/" + std::to_string(slot),
                       .type = u8,
                       .element_count = kCapacity,
                       .options = {.collective = true, .pooled = true}});
    for (Job& job : jobs_) {
      auto keys = job.AddKeys(specs);
      ASSERT_TRUE(keys.ok()) << ToString(keys.status());
      slots_.push_back(*std::move(keys));
    }
  }
  Key& Slot(std::uint32_t rank, std::uint32_t sequence) { return slots_[rank][sequence % kDepth]; }

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
  std::vector<Job> jobs_;
  std::vector<std::vector<Key>> slots_;  // [rank][slot]
};
INSTANTIATE_TEST_SUITE_P(Transports, Pools,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

// A round in flight. Rank r has the values first + r.
template <typename T>
struct Round {
  std::vector<T> sent[2], received[2];
  std::vector<Handle> handles;
  void Expect(T value) {
    for (std::size_t rank = 0; rank < handles.size(); ++rank) {
      const Status status = handles[rank].Wait(std::chrono::seconds(30));
      ASSERT_TRUE(status.ok()) << ToString(status);
      EXPECT_THAT(received[rank], Each(value));
    }
  }
};

TEST_P(Pools, RoundsOfAllSizesTypesAndOperationsAreInFlightTogether) {
  Join("mixed");
  std::uint32_t sequence = 0;
  const auto start = [&]<typename T>(Round<T>& round, std::size_t count, T first,
                                     Operation operation) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      round.sent[rank].assign(count, static_cast<T>(first + static_cast<T>(rank)));
      round.received[rank].assign(count, T{});
      round.handles.push_back(Slot(rank, sequence)
                                  .AllReduce(std::span<const T>(round.sent[rank]),
                                             std::span<T>(round.received[rank]), operation,
                                             sequence));
    }
    ++sequence;
  };
  // One element, then a chunk and one element, then the whole capacity, and in other order next.
  for (const std::size_t shift : {0u, 1u, 2u, 3u}) {
    const std::size_t bytes[] = {8, 65536 + 8, kCapacity};
    Round<float> a;
    Round<std::int64_t> b;
    Round<double> c;
    start(a, bytes[shift % 3] / sizeof(float), 3.0f, Operation::kSum);
    start(b, bytes[(shift + 1) % 3] / sizeof(std::int64_t), std::int64_t{-5}, Operation::kMin);
    start(c, bytes[(shift + 2) % 3] / sizeof(double), 2.0, Operation::kProduct);
    a.Expect(7.0f);
    b.Expect(-5);
    c.Expect(6.0);
    Round<float> mean;
    Round<std::int32_t> max;
    start(mean, bytes[(shift + 2) % 3] / sizeof(float), 1.0f, Operation::kMean);
    start(max, bytes[shift % 3] / sizeof(std::int32_t), 8, Operation::kMax);
    Round<std::uint8_t> bits;
    start(bits, bytes[shift % 3], std::uint8_t{6}, Operation::kBitwiseXor);
    mean.Expect(1.5f);
    max.Expect(9);
    bits.Expect(1);
  }
}

TEST_P(Pools, RanksThatDifferAreBothNamed) {
  const auto expect = [&](const std::string& name, std::size_t count, Operation operation,
                          std::uint32_t sequence, const std::string& text) {
    Join(name);
    std::vector<float> sent(20000, 1.0f), received[2] = {sent, sent};
    const Handle agreed =
        Slot(0, 0).AllReduce(std::span<const float>(sent.data(), 16384),
                             std::span(received[0].data(), 16384), Operation::kSum, 0);
    const Handle other =
        Slot(1, 0).AllReduce(std::span<const float>(sent.data(), count),
                             std::span(received[1].data(), count), operation, sequence);
    EXPECT_THAT(ToString(agreed.Wait(std::chrono::seconds(30))),
                AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(text),
                      HasSubstr("operation 0 of the pool: sum of 16384 elements of type f32")));
    EXPECT_FALSE(other.Wait(std::chrono::seconds(30)).ok());
  };
  // One chunk against two.
  expect("length", 16385, Operation::kSum, 0, "sum of 16385 elements of type f32");
  expect("operation", 16384, Operation::kMax, 0, "max of 16384 elements");
  expect("sequence", 16384, Operation::kSum, 3, "operation 3 of the pool");
}

TEST_P(Pools, WrongUseHarmsNobody) {
  Join("wrong");
  std::vector<float> values(kCapacity / sizeof(float) + 1, 1.0f), results = values;
  const auto refused = [&](std::size_t count, Operation operation) {
    return ToString(Slot(0, 0)
                        .AllReduce(std::span<const float>(values.data(), count),
                                   std::span(results.data(), count), operation, 0)
                        .Wait());
  };
  EXPECT_THAT(refused(values.size(), Operation::kSum), HasSubstr("capacity is 1048576 bytes"));
  EXPECT_THAT(refused(0, Operation::kSum), HasSubstr("0 elements of type f32 were given"));
  EXPECT_THAT(ToString(Slot(0, 0).PushPull().Wait()), HasSubstr("is pooled: use AllReduce()"));
  const auto key = jobs_[0].AddKey("bad", f32, 4, None{}, {.collective = true, .pooled = true});
  EXPECT_THAT(ToString(key.status()),
              HasSubstr("pooled keys must have type u8; this one has type f32"));
}

}  // namespace
}  // namespace phub::process
