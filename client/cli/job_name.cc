#include "client/cli/job_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "client/cli/rpc.h"
#include "common/base/printable.h"

namespace phub::client::cli {

grpc::Status FindJob(const Options& options, const std::string& given, JobName& found) {
  found = {options.tenant, given};
  if (!options.tenant.empty()) return grpc::Status::OK;
  v1::ListJobsResponse jobs;
  if (grpc::Status status = CallListJobs(options, "", jobs); !status.ok()) return status;
  std::set<std::string> candidates;
  for (const v1::JobInfo& job : jobs.jobs()) {
    const std::string full = job.tenant() + "/" + job.name();
    if (job.name() != given && full != given) continue;
    found = {job.tenant(), job.name()};
    candidates.insert(Printable(full));
  }
  if (candidates.size() > 1) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            fmt::format("several tenants have a job {}; use one of these names: {}",
                        Printable(given), fmt::join(candidates, ", "))};
  }
  const std::size_t slash = given.find('/');
  if (candidates.empty() && slash != std::string::npos) {
    found = {given.substr(0, slash), given.substr(slash + 1)};
  }
  return grpc::Status::OK;
}

}  // namespace phub::client::cli
