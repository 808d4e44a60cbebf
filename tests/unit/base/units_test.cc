#include "common/base/units.h"

#include <gtest/gtest.h>

namespace phub {
namespace {

TEST(Units, DurationsReadWithTheirUnit) {
  EXPECT_EQ(ParseDuration("2s"), 2 * kSecond);
  EXPECT_EQ(ParseDuration("1.5s"), 1500 * kMillisecond);
  EXPECT_EQ(ParseDuration("250 ms"), 250 * kMillisecond);
  EXPECT_EQ(ParseDuration("1h"), 3600 * kSecond);
  EXPECT_EQ(ParseDuration("7ns"), 7);
  EXPECT_EQ(ParseDuration("0s"), 0);
}

TEST(Units, WhatIsNoDurationIsRefused) {
  for (const char* text : {"", "2", "s", "-2s", "2 weeks", "1.s", ".5s", "1..5s", "2s ", "0x2s",
                           "0.5ns", "99999999999h", "1e3s", "9223372036854775808ns"})
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
}

TEST(Units, SizesReadInPowersOf1024And1000) {
  EXPECT_EQ(ParseBytes("4096"), 4096u);
  EXPECT_EQ(ParseBytes("64KiB"), 65536u);
  EXPECT_EQ(ParseBytes("1.5MiB"), 1572864u);
  EXPECT_EQ(ParseBytes("8 GiB"), 8 * kGibibyte);
  EXPECT_EQ(ParseBytes("1MB"), 1'000'000u);
  EXPECT_EQ(ParseBytes("17B"), 17u);
  EXPECT_EQ(ParseBytes("9223372036854775807"), 9223372036854775807u);
}

TEST(Units, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "KiB", "64Q", "64kib", "-1", "1.5", "0.1KiB", "9223372036854775808",
                           "9007199254740992TiB", "99999999999999999999"})
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
}

TEST(Units, ExactTextReadsBackToTheSameValue) {
  for (const DurationNs value : {DurationNs{1}, DurationNs{999}, 1500 * kMillisecond, 90 * kSecond,
                                 3600 * kSecond, DurationNs{123'456'789'012'345}})
    EXPECT_EQ(ParseDuration(ExactDuration(value)), value) << ExactDuration(value);
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000},
                                    std::uint64_t{65536}, 3 * kTebibyte, std::uint64_t{99968}})
    EXPECT_EQ(ParseBytes(ExactBytes(value)), value) << ExactBytes(value);
  EXPECT_EQ(ExactDuration(0), "0s");
  EXPECT_EQ(ExactDuration(1500 * kMillisecond), "1500ms");
  EXPECT_EQ(ExactBytes(8 * kGibibyte), "8GiB");
}

TEST(Units, HumanTextHasFewDigits) {
  EXPECT_EQ(HumanDuration(1'300'000'000), "1.3 s");
  EXPECT_EQ(HumanDuration(59'960'000'000), "60.0 s");
  EXPECT_EQ(HumanDuration(125 * kSecond), "2 min 5 s");
  EXPECT_EQ(HumanDuration(7200 * kSecond), "2 h");
  EXPECT_EQ(HumanDuration(90'000 * kSecond), "1 d 1 h");
  EXPECT_EQ(HumanDuration(250 * kMillisecond), "250 ms");
  EXPECT_EQ(HumanDuration(12'345), "12.3 us");
  EXPECT_EQ(HumanDuration(40), "40 ns");
  EXPECT_EQ(HumanDuration(-40), "-40 ns");
  EXPECT_EQ(HumanBytes(102'236'160), "97.5 MiB");
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(8 * kGibibyte), "8 GiB");
  EXPECT_EQ(HumanBytes(kMebibyte + kMebibyte / 4), "1.25 MiB");
}

}  // namespace
}  // namespace phub
