// The order of probes in a survey, and its result.
#include "common/plan/survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

namespace phub::plan {
namespace {

using ::testing::HasSubstr;

// Racks 0 and 2 form a group, and so do 1 and 3, behind uplinks that two pairs share.
PairMeasure InHiddenGroups(RankPair pair, bool together) {
  const bool near = (pair.first + pair.second) % 2 == 0;
  const double rate = near ? 1e8 : together ? 5e6 : 1e7;
  return {.round_trip_s = 1e-4,
          .out_bytes_per_s = near ? 1e8 : 1e7,
          .back_bytes_per_s = near ? 1e8 : 1e7,
          .out_mean_bytes_per_s = rate,
          .back_mean_bytes_per_s = rate};
}

TEST(Survey, ProbesEveryPairByItselfAndGroupsTogether) {
  std::mutex mutex;
  std::vector<RankPair> alone, together;
  const SurveyOptions options{.duration = kSecond, .repeat = 2};
  const auto surveyed = Survey(4, options, [&](RankPair pair, DurationNs duration) {
    const std::lock_guard lock(mutex);
    (duration == kSecond ? alone : together).push_back(pair);
    return InHiddenGroups(pair, duration != kSecond);
  });
  ASSERT_TRUE(surveyed.ok()) << surveyed.status();
  EXPECT_EQ(surveyed->groups, (RankGroups{{0, 2}, {1, 3}}));
  EXPECT_EQ(alone.size(), 2u * 6);  // the other direction the second time
  EXPECT_EQ(alone[6], RankPair(alone[0].second, alone[0].first));
  EXPECT_EQ(together.size(), 2u * 2);
  // The rate of the two pairs together, not of each alone.
  EXPECT_DOUBLE_EQ(surveyed->between[0][1], 1e7);
  EXPECT_DOUBLE_EQ(surveyed->measured.bytes_per_s[0][1], 1e7);
  EXPECT_DOUBLE_EQ(surveyed->measured.bytes_per_s[3][1], 1e8);
}

TEST(Survey, EndsWithTheFirstProbeThatFails) {
  int probes = 0;
  const auto failed = Survey(4, {}, [&](RankPair, DurationNs) -> absl::StatusOr<PairMeasure> {
    if (++probes < 3) return PairMeasure{1, 1, 1, 1, 1};
    return absl::AbortedError("rack 3 is gone");
  });
  EXPECT_EQ(failed.status().message(), "rack 3 is gone");
  EXPECT_EQ(probes, 3);
  const auto empty = Survey(2, {}, [](RankPair, DurationNs) { return PairMeasure{}; });
  EXPECT_THAT(std::string(empty.status().message()), HasSubstr("returned no result"));
}

}  // namespace
}  // namespace phub::plan
