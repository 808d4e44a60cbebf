#include "server/control/jobs/tenant_totals.h"

namespace phub::server {

WorkTotals TenantTotals::TotalsOf(const Job& job) {
  WorkTotals totals;
  for (const auto& shard : job.shards) totals.Add(shard->metrics, job.settings.world_size);
  return totals;
}

void TenantTotals::NoteTotals(Job& job) {
  job.totals = TotalsOf(job);
  released_[job.account.tenant].Add(job.totals);
}

}  // namespace phub::server
