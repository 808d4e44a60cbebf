// The daemon's counters and gauges: GetStats for phubctl, and a sample for the metrics port. Owned
// by Control; under control's lock. A sample is made in turns, so that many jobs and ranks do not
// hold the lock for long.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "phub/v1/admin.pb.h"
#include "server/control/admin/stats_pages.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/tenant_totals.h"
#include "server/metrics/sample.h"

namespace phub::server {

class Metrics {
 public:
  Metrics(Context& context, JobTable& jobs, TenantTotals& totals)
      : context_(context), jobs_(jobs), totals_(totals) {}

  // A sample that is being made.
  class Sampling {
   public:
    MetricsSample sample;
    bool whole = false;  // any number of jobs and tenants, for GetStats, which has no groups

   private:
    friend class Metrics;
    struct Visited {
      std::uint64_t number = 0;  // the job's
      WorkTotals totals;
    };
    struct VisitedTenant {
      TenantSample sample;
      std::vector<Visited> jobs;  // in the order of their numbers
    };
    bool begun_ = false;
    std::uint64_t last_ = 0;   // the newest job when the sample was begun
    std::uint64_t after_ = 0;  // the last job that was visited
    std::map<std::string, VisitedTenant> tenants_;
    std::string tenant_;  // the last tenant that was described
  };
  // Visits the next jobs, then the next tenants. True: the sample is complete. Otherwise call it
  // again in another turn.
  bool SampleMore(Sampling& sampling);

  // A page of all counters, or only of those of one tenant. Calls that arrive while a sample is
  // made share the next one.
  void GetStats(const v1::GetStatsRequest& request, Answer<v1::GetStatsResponse> answer,
                const std::string& only_tenant = {});
  RankMetricsSum SumOfRank(const Job& job, Rank rank) const;
  static WorkTotals TotalsOfGroup(const Group& group);

 private:
  struct StatsCall {
    std::string only_tenant;  // empty: all
    StatsPage page;
    Answer<v1::GetStatsResponse> answer;
  };
  using StatsCalls = std::vector<StatsCall>;

  void BeginSample(Sampling& sampling) const;
  // These two return false if the turn's work is done.
  bool VisitJobs(Sampling& sampling, std::size_t& units) const;
  bool VisitTenants(Sampling& sampling, std::size_t& units) const;
  void Visit(const Job& job, Sampling& sampling) const;
  static void VisitGroups(const Job& job, MetricsSample& sample);
  // Tenants to report: those with jobs, those that had jobs before, and the default tenant. Null:
  // all are described.
  const std::string* NextTenant(const Sampling& sampling) const;
  void DescribeTenant(Sampling::VisitedTenant& tenant,
                      const std::vector<std::uint64_t>& unreleased) const;
  void FinishSample(Sampling& sampling) const;
  void SampleForCalls();
  void ContinueForCalls(const std::shared_ptr<Sampling>& sampling,
                        const std::shared_ptr<StatsCalls>& calls);

  Context& context_;
  JobTable& jobs_;
  TenantTotals& totals_;
  StatsCalls waiting_calls_;     // for the next sample
  bool sampling_calls_ = false;  // a sample for earlier calls is being made
};

}  // namespace phub::server
