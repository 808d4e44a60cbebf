#include "server/tenant/audit_budget.h"

#include <algorithm>

namespace phub::server {
namespace {

void Suppress(std::uint64_t& suppressed, TimeNs& since, TimeNs now) {
  if (suppressed++ == 0) since = now;
}

}  // namespace

bool AuditBudgets::Take(const std::string& tenant, TimeNs now) {
  const std::lock_guard lock(mutex_);
  Budget& budget = budgets_[tenant];
  if (budget.earned_at == 0) budget.earned_at = now;
  const std::int64_t earned = (now - budget.earned_at) / kAuditEvery;
  if (earned > 0) {
    budget.left =
        static_cast<int>(std::min<std::int64_t>(budget.left + earned, std::int64_t{kAuditBurst}));
    budget.earned_at += earned * kAuditEvery;
  }
  if (budget.left == 0) {
    Suppress(budget.suppressed, budget.suppressed_since, now);
    return false;
  }
  --budget.left;
  return true;
}

void AuditBudgets::NoteSuppressed(const std::string& tenant, TimeNs now) {
  const std::lock_guard lock(mutex_);
  Budget& budget = budgets_[tenant];
  if (budget.earned_at == 0) budget.earned_at = now;
  Suppress(budget.suppressed, budget.suppressed_since, now);
}

std::vector<AuditBudgets::Summary> AuditBudgets::TakeSummaries(TimeNs now, bool all) {
  const std::lock_guard lock(mutex_);
  std::vector<Summary> due;
  for (auto it = budgets_.begin(); it != budgets_.end();) {
    Budget& budget = it->second;
    if (budget.suppressed > 0 && (all || now - budget.suppressed_since >= kAuditSummaryEvery)) {
      due.push_back({it->first, budget.suppressed, now - budget.suppressed_since});
      budget.suppressed = 0;
    }
    const bool full = budget.left + (now - budget.earned_at) / kAuditEvery >= kAuditBurst;
    it = budget.suppressed == 0 && full ? budgets_.erase(it) : std::next(it);
  }
  return due;
}

}  // namespace phub::server
