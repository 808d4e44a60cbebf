// Divides the quotas of tenants among the core loops: weights and bandwidth.
//
// The bandwidth limit of a tenant applies to the whole daemon. Each core loop enforces its own part
// of it, without talking to other core loops. The parts are proportional to the tenant's chunks on
// each core loop, and are recomputed when those change. Owned by Control; under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "server/control/context.h"
#include "server/control/jobs/job_table.h"

namespace phub::server {

class TenantShares {
 public:
  TenantShares(Context& context, JobTable& jobs) : context_(context), jobs_(jobs) {}

  // A number that identifies the tenant to core loops. All jobs of a tenant have the same number.
  std::uint32_t NumberOfTenant(const std::string& tenant);
  // The share of the tenant's jobs of that core loop, from its current quota.
  TenantShare ShareOf(const std::string& tenant, std::size_t core) const;
  // Sends the shares to the core loops.
  void ShareOut(const std::string& tenant);
  // The same, but only if the tenant has a bandwidth limit: its parts depend on the placement of
  // its chunks.
  void ShareOutAgain(const std::string& tenant);

 private:
  Context& context_;
  JobTable& jobs_;
  std::map<std::string, std::uint32_t> tenant_numbers_;
};

}  // namespace phub::server
