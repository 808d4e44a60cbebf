#include "common/base/backoff.h"

#include <gtest/gtest.h>

namespace phub {
namespace {

TEST(Backoff, PausesDoubleUpToASecondAndAreRandom) {
  SeededRandom random(7);
  Backoff backoff;
  DurationNs expected = 50 * kMillisecond;
  for (int i = 0; i < 10; ++i) {
    const DurationNs pause = backoff.Next(random);
    EXPECT_GE(pause, expected / 2) << i;
    EXPECT_LE(pause, expected) << i;
    expected = std::min(2 * expected, kSecond);
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(random), 50 * kMillisecond);
}

TEST(Backoff, RanksDoNotPauseAlike) {
  SeededRandom one(1);
  SeededRandom other(2);
  EXPECT_NE(Jittered(kSecond, one), Jittered(kSecond, other));
  EXPECT_EQ(Jittered(0, one), 0);
  EXPECT_EQ(Jittered(1, one), 1);
}

}  // namespace
}  // namespace phub
