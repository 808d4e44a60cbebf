#include "server/tenant/audit_budget.h"

#include <gtest/gtest.h>

namespace phub::server {
namespace {

constexpr TimeNs kStart = 100 * kSecond;

int TakeAll(AuditBudgets& budgets, const std::string& tenant, TimeNs now, int attempts) {
  int taken = 0;
  for (int i = 0; i < attempts; ++i) taken += budgets.Take(tenant, now) ? 1 : 0;
  return taken;
}

TEST(AuditBudgets, ATenantHasABurstAndThenARate) {
  AuditBudgets budgets;
  EXPECT_EQ(TakeAll(budgets, "acme", kStart, 1000), kAuditBurst);
  EXPECT_EQ(TakeAll(budgets, "zeta", kStart, 10), 10);  // has a budget of its own
  EXPECT_EQ(TakeAll(budgets, "acme", kStart + kAuditEvery - 1, 10), 0);
  EXPECT_EQ(TakeAll(budgets, "acme", kStart + 3 * kAuditEvery, 10), 3);
  EXPECT_EQ(TakeAll(budgets, "acme", kStart + 1000 * kAuditEvery, 1000), kAuditBurst);
}

TEST(AuditBudgets, SuppressedEntriesAreSummarizedOnceAMinute) {
  AuditBudgets budgets;
  TakeAll(budgets, "acme", kStart, kAuditBurst + 5);
  EXPECT_TRUE(budgets.TakeSummaries(kStart + kSecond, false).empty());
  budgets.NoteSuppressed("acme", kStart + 2 * kSecond);
  const auto due = budgets.TakeSummaries(kStart + kAuditSummaryEvery, false);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].tenant, "acme");
  EXPECT_EQ(due[0].count, 6u);
  EXPECT_EQ(due[0].duration, kAuditSummaryEvery);
  EXPECT_TRUE(budgets.TakeSummaries(kStart + 2 * kAuditSummaryEvery, true).empty());
  // Asking for summaries refills nobody's budget.
  EXPECT_EQ(TakeAll(budgets, "acme", kStart + kAuditSummaryEvery, 100), 6);
  EXPECT_EQ(budgets.TakeSummaries(kStart + kAuditSummaryEvery, true).at(0).count, 94u);
}

}  // namespace
}  // namespace phub::server
