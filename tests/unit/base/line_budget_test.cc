#include "common/base/line_budget.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace phub {
namespace {

constexpr LineBudget::Limits kLimits{.burst = 10, .per_second = 2, .summary_every = 5 * kSecond};

TEST(LineBudget, ASubjectHasABurstAndThenSoManyPerSecond) {
  LineBudget budget(kLimits);
  int lines = 0;
  for (int i = 0; i < 1000; ++i) lines += budget.Take("red", kSecond) ? 1 : 0;
  EXPECT_EQ(lines, 10);
  EXPECT_TRUE(budget.Take("blue", kSecond));  // others are not affected
  for (int i = 0; i < 1000; ++i) lines += budget.Take("red", 4 * kSecond) ? 1 : 0;
  EXPECT_EQ(lines, 16);
}

TEST(LineBudget, SummariesSayHowManyWereLeftOut) {
  LineBudget budget(kLimits);
  EXPECT_EQ(budget.NextSummary(), std::numeric_limits<TimeNs>::max());
  for (int i = 0; i < 17; ++i) budget.Take("red", kSecond);
  EXPECT_EQ(budget.NextSummary(), 6 * kSecond);
  EXPECT_TRUE(budget.TakeSummaries(5 * kSecond).empty());
  const auto summaries = budget.TakeSummaries(6 * kSecond);
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].subject, "red");
  EXPECT_EQ(summaries[0].count, 7u);
  EXPECT_TRUE(budget.TakeSummaries(60 * kSecond).empty());
  EXPECT_EQ(budget.NextSummary(), std::numeric_limits<TimeNs>::max());
}

TEST(LineBudget, ManySubjectsShareOneBudget) {
  LineBudget budget(kLimits);
  std::size_t lines = 0;
  for (int i = 0; i < 20'000; ++i) lines += budget.Take(std::to_string(i), kSecond) ? 1 : 0;
  EXPECT_EQ(lines, kLimits.subjects_max + 10);
  // Expect: those with whole budgets are forgotten.
  EXPECT_TRUE(budget.Take("later", 60 * kSecond));
}

}  // namespace
}  // namespace phub
