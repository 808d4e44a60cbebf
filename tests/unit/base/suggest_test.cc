#include "common/base/suggest.h"

#include <gtest/gtest.h>

#include <array>

namespace phub {
namespace {

constexpr std::array<std::string_view, 4> kWords = {"listen", "data_listen", "liveness_timeout",
                                                    "drain_timeout"};

TEST(Suggest, EditDistanceCountsASwapOfNeighboursOnce) {
  EXPECT_EQ(EditDistance("listen", "listen"), 0u);
  EXPECT_EQ(EditDistance("lisetn", "listen"), 1u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(Suggest, NearestIgnoresCaseAndSeparators) {
  EXPECT_EQ(Nearest("Data-Listen", kWords), "data_listen");
  EXPECT_EQ(Nearest("lisen", kWords), "listen");
  EXPECT_EQ(Nearest("liveness_timout", kWords), "liveness_timeout");
}

TEST(Suggest, TheOnlyWordThatContainsItIsMeant) {
  EXPECT_EQ(Nearest("liveness", kWords), "liveness_timeout");
  EXPECT_EQ(Nearest("timeout", kWords), "");  // two words contain it
}

TEST(Suggest, NothingNearIsNothing) {
  EXPECT_EQ(Nearest("frobnicate", kWords), "");
  EXPECT_EQ(Nearest("", kWords), "");
  EXPECT_EQ(DidYouMean("frobnicate", kWords), "");
}

}  // namespace
}  // namespace phub
