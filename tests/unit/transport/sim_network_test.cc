// The simulated network's own guarantees, on which simulations depend.
#include "tests/sim/sim_network.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/sim/sim_transport.h"

namespace phub::sim {
namespace {

using transport::IoStatus;

std::size_t WriteText(SimNetwork::Connection& end, std::string text) {
  const iovec part{text.data(), text.size()};
  return end.Writev({&part, 1}).bytes;
}

std::string ReadText(SimNetwork::Connection& end, IoStatus* status = nullptr) {
  char buffer[64];
  const iovec part{buffer, sizeof buffer};
  const transport::IoResult io = end.Readv({&part, 1});
  if (status != nullptr) *status = io.status;
  return {buffer, io.bytes};
}

IoStatus StatusOf(SimNetwork::Connection& end) {
  IoStatus status{};
  ReadText(end, &status);
  return status;
}

TEST(SimNetwork, BytesTakeTheLatency) {
  SimNetwork network(1, {.latency_min = 50 * kMicrosecond});
  auto [a, b] = network.Connect(0, 1);
  EXPECT_EQ(WriteText(*a, "hello"), 5u);
  network.RunUntil(50 * kMicrosecond - 1);
  EXPECT_EQ(ReadText(*b), "");
  network.RunUntil(50 * kMicrosecond);
  EXPECT_EQ(ReadText(*b), "hello");
}

TEST(SimNetwork, BandwidthDelays) {
  SimNetwork network(1, {.latency_min = 1000, .bytes_per_second = 1'000'000'000});
  auto [a, b] = network.Connect(0, 1);
  WriteText(*a, std::string(500, 'x'));
  WriteText(*a, "y");
  EXPECT_TRUE(network.Step());
  EXPECT_EQ(network.clock().Now(), 1500);
  EXPECT_TRUE(network.Step());
  EXPECT_EQ(network.clock().Now(), 1501);
}

TEST(SimNetwork, ClogDelaysOneDirectionOnly) {
  SimNetwork network(1, {.latency_min = 10});
  auto [a, b] = network.Connect(0, 1);
  network.Clog(*a, kSecond);
  WriteText(*a, "slow");
  WriteText(*b, "fast");
  network.RunUntil(10);
  EXPECT_EQ(ReadText(*a), "fast");
  EXPECT_EQ(ReadText(*b), "");
  network.RunUntil(kSecond);
  EXPECT_EQ(ReadText(*b), "slow");
}

TEST(SimNetwork, PipeIsBoundedAndRoomComesBack) {
  SimNetwork network(1, {.latency_min = 10, .pipe_bytes = 8});
  auto [a, b] = network.Connect(0, 1);
  EXPECT_EQ(WriteText(*a, "0123456789"), 8u);
  EXPECT_EQ(WriteText(*a, "89"), 0u);
  network.RunUntil(10);
  EXPECT_EQ(ReadText(*b), "01234567");
  EXPECT_EQ(WriteText(*a, "89"), 0u) << "the sender does not know yet";
  network.RunUntil(20);
  EXPECT_EQ(WriteText(*a, "89"), 2u);
  network.RunUntil(30);
  EXPECT_EQ(ReadText(*b), "89");
}

TEST(SimNetwork, OrderlyCloseComesAfterTheBytes) {
  SimNetwork network(1, {.latency_min = 10, .latency_jitter = 1000});
  auto [a, b] = network.Connect(0, 1);
  WriteText(*a, "last words");
  a.reset();
  while (network.Step()) {
  }
  EXPECT_EQ(ReadText(*b), "last words");
  EXPECT_EQ(StatusOf(*b), IoStatus::kClosed);
}

TEST(SimNetwork, ResetReachesBothEndsAndLosesBytes) {
  SimNetwork network(1, {});
  auto [a, b] = network.Connect(0, 1);
  WriteText(*a, "lost");
  network.Reset(*a);
  EXPECT_EQ(StatusOf(*a), IoStatus::kReset);
  EXPECT_EQ(StatusOf(*b), IoStatus::kReset);
}

TEST(SimNetwork, CrashIsSilentUntilTheResetComes) {
  SimNetwork network(1, {.latency_min = 10, .pipe_bytes = 16});
  auto [a, b] = network.Connect(0, 1);
  auto [c, d] = network.Connect(0, 2);
  WriteText(*b, "in flight");
  network.Crash(1, kSecond);
  b.reset();  // a crashed process does not close its connections in order
  network.RunUntil(kSecond - 1);
  EXPECT_EQ(ReadText(*a), "in flight");
  EXPECT_EQ(StatusOf(*a), IoStatus::kDrained);
  WriteText(*a, std::string(100, 'x'));
  EXPECT_EQ(WriteText(*a, "x"), 0u) << "nobody reads there";
  network.RunUntil(kSecond);
  EXPECT_EQ(StatusOf(*a), IoStatus::kReset);
  EXPECT_EQ(StatusOf(*c), IoStatus::kDrained) << "other nodes' connections live";
  EXPECT_EQ(WriteText(*c, "on"), 2u);
}

TEST(SimNetwork, ScheduledCallsRunInOrderOfTime) {
  SimNetwork network(1, {});
  std::vector<int> order;
  network.Schedule(20, [&] { order.push_back(2); });
  network.Schedule(10, [&] {
    order.push_back(1);
    network.Schedule(20, [&] { order.push_back(3); });
  });
  while (network.Step()) {
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

// Random traffic over every fault. Returns the history's hash.
std::uint64_t Storm(std::uint64_t seed, std::uint64_t* resets) {
  SimNetwork network(seed, {.latency_jitter = kMillisecond,
                            .pipe_bytes = 500,
                            .split_read_chance = 500'000,
                            .partial_write_chance = 500'000,
                            .clog_chance = 50'000,
                            .reset_chance = 2'000});
  SeededRandom random(seed);
  std::vector<SimNetwork::ConnectionPair> pairs;
  for (std::uint32_t i = 0; i < 4; ++i) pairs.push_back(network.Connect(i, i + 1));
  for (int i = 0; i < 3000; ++i) {
    auto& [a, b] = pairs[random.Below(pairs.size())];
    auto& end = random.Chance(1, 2) ? a : b;
    WriteText(*end, std::string(random.Below(200), 'z'));
    IoStatus status{};
    ReadText(*end, &status);
    if (status == IoStatus::kReset) {
      ++*resets;
      auto fresh = network.Connect(0, 1);
      a = std::move(fresh.first);
      b = std::move(fresh.second);
    }
    if (random.Chance(2, 3)) network.Step();
  }
  return network.history_hash();
}

TEST(SimNetwork, EqualSeedsGiveEqualRuns) {
  std::uint64_t resets = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::uint64_t first = Storm(seed, &resets);
    EXPECT_EQ(first, Storm(seed, &resets)) << "seed=" << seed;
    EXPECT_NE(first, Storm(seed + 1000, &resets)) << "seed=" << seed;
  }
  EXPECT_GT(resets, 0u) << "the storm was to cause resets";
}

}  // namespace
}  // namespace phub::sim
