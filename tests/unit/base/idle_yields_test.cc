#include "common/base/idle_yields.h"

#include <gtest/gtest.h>

namespace phub {
namespace {

constexpr DurationNs kLong = 10 * IdleYields::kShortSleep;

std::uint32_t YieldsInARow(IdleYields& yields) {
  std::uint32_t count = 0;
  while (yields.Take()) ++count;
  return count;
}

TEST(IdleYieldsTest, YieldsAsOftenAsItMayWhileSleepsAreShort) {
  IdleYields yields(16);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(YieldsInARow(yields), 16u);
    yields.Slept(0);
  }
}

TEST(IdleYieldsTest, HalvesWithEachLongSleepDownToOne) {
  IdleYields yields(12);
  for (const std::uint32_t expected : {12u, 6u, 3u, 1u, 1u}) {
    EXPECT_EQ(YieldsInARow(yields), expected);
    yields.Slept(kLong);
  }
}

TEST(IdleYieldsTest, DoublesWithEachShortSleepUpToTheLimit) {
  IdleYields yields(12);
  for (int i = 0; i < 10; ++i) yields.Slept(kLong);
  for (const std::uint32_t expected : {1u, 2u, 4u, 8u, 12u, 12u}) {
    EXPECT_EQ(YieldsInARow(yields), expected);
    yields.Slept(IdleYields::kShortSleep - 1);
  }
}

TEST(IdleYieldsTest, CountsAnewAfterWork) {
  IdleYields yields(2);
  EXPECT_TRUE(yields.Take());
  EXPECT_TRUE(yields.Take());
  yields.Worked();
  EXPECT_EQ(YieldsInARow(yields), 2u);
}

TEST(IdleYieldsTest, SleepsNextOnceItForgoes) {
  IdleYields yields(8);
  EXPECT_TRUE(yields.Take());
  yields.Forgo();
  EXPECT_FALSE(yields.Take());
}

}  // namespace
}  // namespace phub
