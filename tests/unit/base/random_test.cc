#include "common/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <set>
#include <vector>

namespace phub {
namespace {

// A seed must give the same run on every machine, permanently. The values were computed
// independently, from the published definitions of xoshiro256** and splitmix64.
TEST(SeededRandom, GivesTheGoldenValues) {
  struct Case {
    std::uint64_t seed;
    std::array<std::uint64_t, 4> values;
  };
  const Case cases[] = {
      {0, {0x99ec5f36cb75f2b4, 0xbf6e1f784956452a, 0x1a5f849d4933e6e0, 0x6aa594f1262d2d2c}},
      {1, {0xb3f2af6d0fc710c5, 0x853b559647364cea, 0x92f89756082a4514, 0x642e1c7bc266a3a7}},
      {42, {0x15780b2e0c2ec716, 0x6104d9866d113a7e, 0xae17533239e499a1, 0xecb8ad4703b360a1}},
  };
  for (const Case& each : cases) {
    SeededRandom random(each.seed);
    for (const std::uint64_t value : each.values) EXPECT_EQ(random.Next(), value);
  }
}

TEST(SeededRandom, BelowStaysBelowAndReachesEveryValue) {
  SeededRandom random(7);
  for (const std::uint64_t bound : {1u, 2u, 3u, 10u, 64u}) {
    std::vector<int> seen(bound, 0);
    for (int i = 0; i < 5000; ++i) {
      const std::uint64_t value = random.Below(bound);
      ASSERT_LT(value, bound);
      ++seen[value];
    }
    // The expected count is 5000 / bound; half of it is many standard deviations away for all of
    // these.
    for (const int count : seen) EXPECT_GT(count, 2500 / static_cast<int>(bound));
  }
}

TEST(SeededRandom, BelowTakesTheGreatestBounds) {
  SeededRandom random(7);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint64_t kWorst =
      (std::uint64_t{1} << 63) + 1;  // rejects almost every other value
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LT(random.Below(kMax), kMax);
    EXPECT_LT(random.Below(kWorst), kWorst);
  }
}

TEST(SeededRandom, ChanceIsNeverAlwaysOrAbout) {
  SeededRandom random(7);
  int quarter_count = 0;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(random.Chance(0, 5));
    EXPECT_TRUE(random.Chance(5, 5));
    if (random.Chance(1, 4)) ++quarter_count;
  }
  EXPECT_NEAR(quarter_count, 2500, 250);
}

TEST(Random, FillWritesEveryByteAndNoOther) {
  for (std::size_t length = 0; length <= 33; ++length) {
    std::vector<std::byte> bytes(length + 2, std::byte{0xA5});
    std::set<std::byte> first_seen;
    std::set<std::byte> last_seen;
    SeededRandom random(length);
    for (int i = 0; i < 64; ++i) {
      random.Fill(std::span(bytes).subspan(1, length));
      first_seen.insert(bytes[1]);
      last_seen.insert(bytes[length]);
      EXPECT_EQ(bytes.front(), std::byte{0xA5});
      EXPECT_EQ(bytes.back(), std::byte{0xA5});
    }
    if (length > 0) {
      EXPECT_GT(first_seen.size(), 16u) << "length " << length;
      EXPECT_GT(last_seen.size(), 16u) << "length " << length;
    }
  }
}

TEST(SystemRandom, DoesNotRepeat) {
  SystemRandom random;
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.Next());
  EXPECT_EQ(seen.size(), 1000u);
}

}  // namespace
}  // namespace phub
