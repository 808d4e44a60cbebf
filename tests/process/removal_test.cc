// RemoveKeys with a real daemon: a loop of AddKeys and RemoveKeys holds nothing at either end, and
// ranks that disagree are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/join_all.h"
#include "tests/process/reserved_memory.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kElements = 100'000;  // four chunks
constexpr std::chrono::seconds kPatience{60};

class Removals : public ::testing::TestWithParam<TransportChoice> {
 protected:
  static constexpr std::uint32_t kRanks = 2;

  void Join(const std::string& name) {
    jobs_ =
        JoinAll(daemon_.endpoint(), {.job = name, .world_size = kRanks, .transport = GetParam()});
    ASSERT_EQ(jobs_.size(), kRanks);
  }
  std::vector<std::vector<Key>> Add(const std::vector<std::string>& names,
                                    std::uint64_t elements = kElements) {
    std::vector<KeySpec> specs;
    for (const std::string& name : names)
      specs.push_back({.name = name, .element_count = elements, .options = {.collective = true}});
    std::vector<std::vector<Key>> keys;
    for (Job& job : jobs_) {
      auto added = job.AddKeys(specs);
      EXPECT_TRUE(added.ok()) << ToString(added.status());
      if (added.ok()) keys.push_back(*std::move(added));
    }
    return keys;
  }
  // [rank][key]: every rank pushes value + its number.
  static void Round(std::vector<std::vector<Key>>& keys, float value) {
    std::vector<Handle> handles;
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      for (Key& key : keys[rank]) {
        std::ranges::fill(key.gradients<float>(), value + static_cast<float>(rank));
        handles.push_back(key.PushPull());
      }
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    for (const std::vector<Key>& each : keys) {
      for (const Key& key : each) {
        const auto is_sum = [&](float sum) { return sum == 2 * value + 1; };
        ASSERT_TRUE(std::ranges::all_of(key.parameters<float>(), is_sum)) << key.name();
      }
    }
  }
  // Every rank in a thread of its own.
  void OnRanks(const std::function<void(std::uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }
  void Remove(const std::vector<std::vector<Key>>& keys) {
    OnRanks([&](std::uint32_t rank) {
      const Status status = jobs_[rank].RemoveKeys(keys[rank]);
      EXPECT_TRUE(status.ok()) << ToString(status);
    });
  }
  // What the daemon says is reserved, once what it still frees is freed: at most `most`.
  std::uint64_t ReservedAtMost(std::uint64_t most) const {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    std::uint64_t reserved = ReservedBytes(daemon_.endpoint());
    while (reserved > most && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      reserved = ReservedBytes(daemon_.endpoint());
    }
    return reserved;
  }
  static std::size_t SharedMappings() {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);)
      count += line.find("memfd:phub-") != line.npos;
    return count;
  }

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
  std::vector<Job> jobs_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Removals,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

TEST_P(Removals, ALoopOfAddAndRemoveHoldsNothing) {
  Join("loop");
  std::vector<std::vector<Key>> stays = Add({"stays"});
  Round(stays, 1.0f);
  const std::uint64_t reserved = ReservedBytes(daemon_.endpoint());
  const std::size_t mappings = SharedMappings();
  std::uint64_t with_keys = 0;
  for (int i = 0; i < 6; ++i) {
    {
      // Other sizes each time, so that chunks with the same numbers differ.
      std::vector<std::vector<Key>> pair = Add({"a", "b"}, kElements + 1000 * (i % 3));
      std::vector<std::vector<Key>> last = Add({"c"}, 7);
      for (int round = 0; round < 3; ++round) {
        Round(pair, static_cast<float>(10 * i + round));
        Round(last, static_cast<float>(100 * i + round));
        Round(stays, static_cast<float>(i));
      }
      const std::uint64_t now = ReservedBytes(daemon_.endpoint());
      EXPECT_GE(now, reserved + 2 * kElements * sizeof(float));
      if (i == 0) with_keys = now;
      if (i == 3) {
        EXPECT_EQ(now, with_keys);
      }
      for (std::size_t rank = 0; rank < kRanks; ++rank) pair[rank].push_back(last[rank].front());
      last.clear();
      Remove(pair);
    }
    EXPECT_EQ(ReservedAtMost(reserved), reserved) << i;
    EXPECT_EQ(SharedMappings(), mappings) << i;
  }
  Round(stays, 5.0f);
  for (Job& job : jobs_) EXPECT_TRUE(job.Leave().ok());
}

TEST_P(Removals, DisagreementNamesBothSides) {
  Join("disagrees");
  std::vector<std::vector<Key>> a = Add({"a"});
  std::vector<std::vector<Key>> b = Add({"b"});
  std::vector<std::string> messages(kRanks);
  OnRanks([&](std::uint32_t rank) {
    std::vector<Key> given = b[rank];
    if (rank == 1) given.push_back(a[rank].front());
    messages[rank] = std::string(jobs_[rank].RemoveKeys(given).message());
  });
  for (const std::string& message : messages)
    EXPECT_THAT(message, AllOf(HasSubstr("RemoveKeys of key b"),
                               HasSubstr("RemoveKeys of keys a, b"), HasSubstr("keys_mismatch")));
}

}  // namespace
}  // namespace phub::process
