// How the core loops of jobs are shared among aggregators.
#include "server/control/lanes/aggregator_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace phub::server {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint32_t> Share(const std::vector<std::uint32_t>& streams, std::size_t core_loops,
                                 std::size_t first = 0) {
  std::vector<std::uint32_t> indices;
  for (const AggregatorIndex each : ShareAggregators(streams, core_loops, first))
    indices.push_back(each.value);
  return indices;
}

TEST(AggregatorShares, AJobUsesAllAggregatorsInTurn) {
  EXPECT_THAT(Share({0}, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(Share({0, 0}, 4), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(Share({0, 0, 0}, 2), ElementsAre(0, 1));
}

TEST(AggregatorShares, JobsOnOneCoreLoopUseAllAggregators) {
  std::vector<std::uint32_t> streams(3);
  for (int job = 0; job < 6; ++job) ++streams[Share(streams, 1)[0]];
  EXPECT_THAT(streams, ElementsAre(2, 2, 2));
  // A job on aggregator 1 ends. The next one gets its place.
  --streams[1];
  EXPECT_THAT(Share(streams, 1), ElementsAre(1));
  EXPECT_THAT(Share(streams, 4), ElementsAre(1, 0, 1, 2));
}

TEST(AggregatorShares, DaemonsBeginWithDifferentAggregators) {
  // Two daemons of a rack with one core loop each, then with three.
  EXPECT_THAT(Share({0, 0}, 1, 0), ElementsAre(0));
  EXPECT_THAT(Share({0, 0}, 1, 1), ElementsAre(1));
  EXPECT_THAT(Share({0, 0}, 3, 0), ElementsAre(0, 1, 0));
  EXPECT_THAT(Share({0, 0}, 3, 3), ElementsAre(1, 0, 1));
  EXPECT_THAT(Share({0, 0, 0}, 2, 1000), ElementsAre(1, 2));
}

TEST(AggregatorShares, DifferByOneStreamAtMost) {
  for (std::size_t count = 1; count <= 5; ++count) {
    for (std::size_t core_loops = 1; core_loops <= 9; ++core_loops) {
      for (std::size_t first = 0; first < count; ++first) {
        std::vector<std::uint32_t> streams(count);
        for (int job = 0; job < 4; ++job) {
          for (const std::uint32_t each : Share(streams, core_loops, first)) ++streams.at(each);
          const auto [least, most] = std::ranges::minmax(streams);
          EXPECT_LE(most - least, 1u) << count << " " << core_loops << " " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace phub::server
