#include "common/base/refusal_log.h"

#include <gtest/gtest.h>

#include <string>

namespace phub {
namespace {

TEST(RefusalLog, APeerHasOneLineInTenSeconds) {
  RefusalLog log;
  EXPECT_EQ(log.Take("10.0.0.1", kSecond), 0u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(log.Take("10.0.0.1", 2 * kSecond), std::nullopt);
  EXPECT_EQ(log.Take("10.0.0.2", 2 * kSecond), 0u);
  EXPECT_EQ(log.Take("10.0.0.1", 11 * kSecond), 500u);
  EXPECT_EQ(log.Take("10.0.0.1", 30 * kSecond), 0u);
}

TEST(RefusalLog, ManyAddressesDoNotBringManyLines) {
  RefusalLog log;
  int lines = 0;
  for (int i = 0; i < 10'000; ++i)
    lines += log.Take("10.0." + std::to_string(i), kSecond).has_value() ? 1 : 0;
  EXPECT_LE(lines, 257);
  // Expect: places become free.
  EXPECT_TRUE(log.Take("10.1.0.1", 20 * kSecond).has_value());
  EXPECT_TRUE(log.Take("10.1.0.2", 20 * kSecond).has_value());
}

}  // namespace
}  // namespace phub
