#include "common/base/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ManPage, HasATitleAndAName) {
  const ManPage page("phubd", 8, "phub 0.1.0", "parameter server daemon");
  EXPECT_THAT(page.text(), StartsWith(".TH \"PHUBD\" 8 \"\" \"phub 0.1.0\" \"phub\"\n"));
  EXPECT_THAT(page.text(), HasSubstr(".SH \"NAME\"\nphubd \\- parameter server daemon\n"));
}

TEST(ManPage, TextIsNeverACommand) {
  ManPage page("a", 1, "b", "c");
  page.Paragraph(".TH is text\n'so is this\nC:\\path -o");
  EXPECT_THAT(page.text(), HasSubstr("\n\\&.TH is text\n\\&'so is this\nC:\\epath \\-o\n"));
  page.Item("--flag", ".dot");
  EXPECT_THAT(page.text(), HasSubstr(".TP\n\\fB\\-\\-flag\\fR\n\\&.dot\n"));
  page.Literal("  one\n  two\n\n");
  EXPECT_THAT(page.text(), HasSubstr(".nf\n  one\n  two\n.fi\n"));
}

}  // namespace
}  // namespace phub
