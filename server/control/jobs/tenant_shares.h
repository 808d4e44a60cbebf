// What tenants may have of the core loops: weights, and bandwidths in parts.
//
// A tenant's bandwidth is that of the whole daemon. Each core loop limits its part by itself, so
// that no core loop asks another one: the parts follow how the tenant's chunks lie on the core
// loops, and are computed again whenever that changes. Owned by Control; under control's lock.
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

  // The same number for all jobs of a tenant: core loops tell tenants apart by it.
  std::uint32_t NumberOfTenant(const std::string& tenant);
  // What its jobs may have of that core loop, as its quota is now.
  TenantShare ShareOf(const std::string& tenant, std::size_t core) const;
  // Tells the core loops.
  void ShareOut(const std::string& tenant);
  // The same, if the share depends on where the tenant's chunks lie.
  void ShareOutAgain(const std::string& tenant);

 private:
  Context& context_;
  JobTable& jobs_;
  std::map<std::string, std::uint32_t> tenant_numbers_;
};

}  // namespace phub::server
