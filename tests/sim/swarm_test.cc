// Runs many seeds. A failing seed prints everything that it drew, and how to run it alone:
//   PHUB_SIM_SEED=4711 ./swarm_test --gtest_filter=NAME
//
// Runs 3,000 seeds of one rack and 700 of several; PHUB_SIM_SEEDS=n of each; or 100,000 and
// 20,000 with PHUB_TEST_LONG=1. PHUB_SIM_SHARD=i/n runs every n-th seed, from PHUB_SIM_FIRST.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/log.h"
#include "tests/sim/cluster.h"

namespace phub::sim {
namespace {

constexpr std::uint64_t kSeeds = 3'000;
constexpr std::uint64_t kSeedsLong = 100'000;
constexpr std::uint64_t kRackSeeds = 700;
constexpr std::uint64_t kRackSeedsLong = 20'000;
constexpr std::uint64_t kSeedsAtMost = 3;  // times as many, if an event is missing
constexpr std::uint64_t kTwiceEvery = 20;  // 5 % of the seeds run twice and must agree
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

const char* Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

class Swarm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { SetLogLevel(LogLevel::kError); }
};

// PHUB_SIM_SEED runs one seed and prints everything about it.
void RunOne(Layout layout, std::uint64_t seed) {
  SetLogLevel(LogLevel::kDebug);
  const Outcome outcome = RunSeed(layout, seed);
  fmt::print("{}\nhash={:x} virtual_ms={}\n", outcome.description, outcome.hash,
             outcome.virtual_time / kMillisecond);
  EXPECT_EQ(outcome.problem, "");
}

void RunSeeds(Layout layout, std::uint64_t count, const char* name) {
  if (const char* one = Environment("PHUB_SIM_SEED")) {
    return RunOne(layout, std::strtoull(one, nullptr, 10));
  }
  std::uint64_t shard = 0, shards = 1;
  if (const char* text = Environment("PHUB_SIM_SHARD")) {
    ASSERT_EQ(std::sscanf(text, "%lu/%lu", &shard, &shards), 2) << text;
  }
  if (const char* text = Environment("PHUB_SIM_SEEDS")) count = std::strtoull(text, nullptr, 10);
  std::uint64_t first = 0;
  if (const char* text = Environment("PHUB_SIM_FIRST")) first = std::strtoull(text, nullptr, 10);
  Coverage coverage;
  // Some events happen in only one of hundreds of seeds, and any change moves them to other seeds.
  // If one is missing, more seeds run. Sanitized builds are slow and run few seeds, so only other
  // builds require every event, and only of the run that begins with the first seed.
  const bool complete = first == 0 && (!kSanitized || Environment("PHUB_TEST_LONG") != nullptr);
  const auto goes_on = [&](std::uint64_t seed) {
    return seed < count ||
           (complete && seed < kSeedsAtMost * count && !coverage.Missing(layout).empty());
  };
  for (std::uint64_t seed = first + shard; goes_on(seed); seed += shards) {
    const Outcome outcome = RunSeed(layout, seed);
    coverage.Add(outcome.coverage);
    ASSERT_EQ(outcome.problem, "") << "reproduce with: PHUB_SIM_SEED=" << seed
                                   << " swarm_test --gtest_filter=*" << name << "\n"
                                   << outcome.description;
    if (seed / shards % kTwiceEvery == 0) {
      ASSERT_EQ(RunSeed(layout, seed).hash, outcome.hash)
          << "not deterministic: PHUB_SIM_SEED=" << seed;
    }
  }
  fmt::print("{}\n", coverage.ToString());
  if (!complete) return;
  EXPECT_EQ(coverage.Missing(layout), "");
}

TEST_F(Swarm, EverySeedEndsAsItMust) {
  RunSeeds(Layout::kOneRack, Environment("PHUB_TEST_LONG") != nullptr ? kSeedsLong : kSeeds,
           "EverySeedEndsAsItMust");
}

TEST_F(Swarm, EverySeedAcrossRacksEndsAsItMust) {
  RunSeeds(Layout::kManyRacks,
           Environment("PHUB_TEST_LONG") != nullptr ? kRackSeedsLong : kRackSeeds,
           "EverySeedAcrossRacksEndsAsItMust");
}

// An oracle that sums in another order than the plan's must report a mistake. Otherwise the test
// could not detect racks that sum in the wrong order.
TEST_F(Swarm, AnotherOrderOfSumsThanThePlansShows) {
  constexpr std::uint64_t kTried = 60;
  constexpr std::pair<oracle::Order, const char*> kOrders[] = {
      {oracle::Order::kChildrenReversed, "children reversed"},
      {oracle::Order::kOwnRanksLast, "own ranks last"},
      {oracle::Order::kNextTree, "next tree"}};
  for (const auto& [order, name] : kOrders) {
    bool shows = false;
    for (std::uint64_t seed = 0; seed < kTried && !shows; ++seed) {
      const std::string problem = RunSeed(Layout::kManyRacks, seed, order).problem;
      shows = problem.find(" instead of ") != std::string::npos;
    }
    EXPECT_TRUE(shows) << name;
  }
}

}  // namespace
}  // namespace phub::sim
