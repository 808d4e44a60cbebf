// Answers administrators' queries about the daemon and its jobs. Owned by Control; under control's
// lock.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"
#include "phub/v1/admin.pb.h"
#include "server/control/admin/job_descriptions.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
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
  Admin(Context& context, JobTable& jobs, LocalRack& local_rack, JobDescriptions& descriptions)
      : context_(context), jobs_(jobs), local_rack_(local_rack), descriptions_(descriptions) {}

  void GetServer(const v1::GetServerRequest& request, Answer<v1::ServerInfo> answer);
  void ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer);
  void GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer);

  bool IsRunning(const std::string& tenant, const std::string& job) const;
  v1::ServerInfo DescribeServer() const;
  // The exchange plan of a job that spans racks. NOT_FOUND: the job has no plan.
  struct JobPlan {
    std::shared_ptr<const plan::Topology> topology;
    std::string text;  // phub.plan.v1
  };
  absl::StatusOr<JobPlan> PlanOf(const std::string& tenant, const std::string& job) const;
  void SetAddresses(BoundAddresses addresses) { addresses_ = std::move(addresses); }

 private:
  struct WholeList;
  void ListMore(const std::shared_ptr<WholeList>& list);
  struct Page;
  void FillPage(const std::shared_ptr<Page>& page);
  void AddExchange(const Job& job, v1::JobInfo described, const Answer<v1::JobInfo>& answer);

  Context& context_;
  JobTable& jobs_;
  LocalRack& local_rack_;
  JobDescriptions& descriptions_;
  BoundAddresses addresses_;
};

}  // namespace phub::server
