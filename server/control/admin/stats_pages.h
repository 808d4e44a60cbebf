// The counters that GetStats answers with, in pages: those of the daemon, then of jobs in the order
// of their creation, then of tenants by name. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "phub/v1/admin.pb.h"
#include "server/metrics/sample.h"

namespace phub::server {

struct StatsPage {
  std::size_t entries_max = 0;  // jobs and tenants; 0: everything at once
  bool first = true;
  std::uint64_t after_job = 0;              // the number of the last job of the page before
  std::optional<std::string> after_tenant;  // the jobs are complete
};

// INVALID_ARGUMENT: the page token is not from a daemon.
absl::StatusOr<StatsPage> ParseStatsPage(const v1::GetStatsRequest& request);
// only_tenant: empty writes the counters of the daemon and of all tenants. RESOURCE_EXHAUSTED: the
// whole list is too long for one answer.
absl::Status WriteStats(const MetricsSample& sample, const std::string& only_tenant,
                        const StatsPage& page, v1::GetStatsResponse& response);

}  // namespace phub::server
