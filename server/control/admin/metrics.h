// The daemon's counters and gauges: GetStats for phubctl, and a sample for the metrics port. Owned
// by Control; under control's lock.
#pragma once

#include <map>
#include <string>

#include "phub/v1/admin.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/tenant_totals.h"
#include "server/metrics/sample.h"

namespace phub::server {

class Metrics {
 public:
  Metrics(Context& context, JobTable& jobs, TenantTotals& totals)
      : context_(context), jobs_(jobs), totals_(totals) {}

  MetricsSample Sample() const;
  void GetStats(const v1::GetStatsRequest& request, Answer<v1::GetStatsResponse> answer);
  RankMetricsSum SumOfRank(const Job& job, Rank rank) const;

 private:
  // Tenants to report: those with jobs, those that had jobs before, and the default tenant.
  std::map<std::string, TenantSample> SampleTenants() const;

  Context& context_;
  JobTable& jobs_;
  TenantTotals& totals_;
};

}  // namespace phub::server
