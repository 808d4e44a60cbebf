#include "server/control/jobs/tenant_totals.h"

#include "server/control/on_control.h"

namespace phub::server {

WorkTotals TenantTotals::TotalsOf(const Job& job) {
  WorkTotals totals;
  for (const auto& shard : job.shards) totals.Add(shard->metrics);
  return totals;
}

void TenantTotals::NoteTotals(Job& job) {
  PHUB_ON_CONTROL();
  job.totals = TotalsOf(job);
  released_[job.account.tenant].Add(job.totals);
}

}  // namespace phub::server
