#include "common/base/named_values.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(NamedValues, EqualListsDoNotDiffer) {
  const NamedValues values = {{"chunk_bytes", "4096"}, {"racks[0]", "a:1"}};
  EXPECT_EQ(DescribeDifferences(values, "A", values, "B"), "");
  EXPECT_EQ(DescribeDifferences({}, "A", {}, "B"), "");
}

TEST(NamedValues, ADifferenceShowsBothValues) {
  EXPECT_EQ(DescribeDifferences({{"chunk_bytes", "4096"}, {"cores", "2"}}, "A",
                                {{"cores", "2"}, {"chunk_bytes", "8192"}}, "B"),
            "chunk_bytes is 4096 at A and 8192 at B");
  EXPECT_EQ(DescribeDifferences({{"racks[2]", "c:1"}}, "A", {{"topology", "ring:2"}}, "B"),
            "racks[2] is c:1 at A and not set at B; topology is not set at A and ring:2 at B");
}

TEST(NamedValues, ManyOrLongDifferencesAreCutAndPrintable) {
  NamedValues many;
  for (int i = 0; i < 100; ++i) many.push_back({fmt::format("link {}", i), std::string(1000, 'x')});
  many.front().value = "\x1b[31m";
  const std::string text = DescribeDifferences(many, "A", {}, "B");
  EXPECT_LT(text.size(), 1000u);
  EXPECT_THAT(text, HasSubstr("link 3 is xxx"));
  EXPECT_THAT(text, Not(HasSubstr("link 4 ")));
  EXPECT_THAT(text, HasSubstr("and 96 more differences"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace phub
