// Jobs whose ranks have a pool each, over tcp and over shared memory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "phub/pool.h"
#include "tests/process/daemon_process.h"
#include "tests/process/join_all.h"

namespace phub::process {

inline constexpr std::uint64_t kPoolRoundBytes = 1 << 17;  // two chunks
inline constexpr std::uint32_t kPoolDepth = 3;
inline constexpr std::chrono::seconds kPoolPatience{60};

// owner: a job or a group.
template <typename Owner>
Result<Pool> AddPoolTo(Owner& owner) {
  return Pool::Add(owner, {.name = "pool", .capacity_bytes = kPoolRoundBytes, .depth = kPoolDepth});
}

class PoolsOfRanks : public ::testing::TestWithParam<TransportChoice> {
 protected:
  explicit PoolsOfRanks(std::uint32_t ranks) : ranks_(ranks) {}

  void Join(const std::string& name) {
    pools_.clear();
    jobs_ = JoinAll(daemon_.endpoint(), {.job = name,
                                         .world_size = ranks_,
                                         .transport = GetParam(),
                                         .leave_timeout = std::chrono::milliseconds(200)});
    ASSERT_EQ(jobs_.size(), ranks_);
    for (Job& job : jobs_) AddPool(job);
  }
  void AddPool(Job& job) {
    Result<Pool> pool = AddPoolTo(job);
    ASSERT_TRUE(pool.ok()) << ToString(pool.status());
    pools_.push_back(*std::move(pool));
  }
  // Runs `body` for each of these ranks, in a thread of its own.
  template <typename Body>
  static void OnRanks(const std::vector<std::uint32_t>& ranks, Body body) {
    std::vector<std::thread> threads;
    for (const std::uint32_t rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  const std::uint32_t ranks_;
  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
  std::vector<Job> jobs_;
  std::vector<Pool> pools_;  // one for each rank
};

}  // namespace phub::process
