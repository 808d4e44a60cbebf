// Answers administrators' queries about the daemon and its jobs. Owned by Control; under control's
// lock.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "phub/v1/admin.pb.h"
#include "server/control/admin/metrics.h"
#include "server/control/admin/stall_reports.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/ranks/local_rack.h"

namespace phub::server {

// The addresses that the daemon's ports are bound to, with port numbers.
struct BoundAddresses {
  std::vector<std::string> control;
  std::vector<std::string> data;
  std::vector<std::string> metrics;  // empty: no metrics port
};

class Admin {
 public:
  Admin(Context& context, JobTable& jobs, LocalRack& local_rack, Metrics& metrics, RackPlans& plans,
        StallReports& stall_reports, TenantTotals& totals)
      : context_(context),
        jobs_(jobs),
        local_rack_(local_rack),
        metrics_(metrics),
        plans_(plans),
        stall_reports_(stall_reports),
        totals_(totals) {}

  void GetServer(const v1::GetServerRequest& request, Answer<v1::ServerInfo> answer);
  void ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer);
  void GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer);

  bool IsRunning(const std::string& tenant, const std::string& job) const;
  v1::ServerInfo DescribeServer() const;
  void SetAddresses(BoundAddresses addresses) { addresses_ = std::move(addresses); }
  v1::JobInfo DescribeJob(const Job& job) const;

 private:
  struct WholeList;
  void ListMore(const std::shared_ptr<WholeList>& list);
  std::string ReasonOf(const Job& job, std::string_view lane) const;

  Context& context_;
  JobTable& jobs_;
  LocalRack& local_rack_;
  Metrics& metrics_;
  RackPlans& plans_;
  StallReports& stall_reports_;
  TenantTotals& totals_;
  BoundAddresses addresses_;
};

}  // namespace phub::server
