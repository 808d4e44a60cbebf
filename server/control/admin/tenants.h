// What admission knows of tenants, and which tenants own sessions and snapshots. Authorization
// happens earlier (rpc/access.h). Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/control/checkpoint/snapshots.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/jobs/tenant_totals.h"

namespace phub::server {

class Tenants {
 public:
  Tenants(Context& context, JobTable& jobs, Sessions& sessions, Snapshots& snapshots,
          TenantShares& shares, TenantTotals& totals)
      : context_(context),
        jobs_(jobs),
        sessions_(sessions),
        snapshots_(snapshots),
        shares_(shares),
        totals_(totals) {}

  // Adds the tenant, or changes its quota and whether it is suspended. New weights and bandwidths
  // apply to running jobs, too. The default tenant always exists.
  void SetTenant(const Tenant& tenant);
  // FAILED_PRECONDITION names the jobs that the tenant still has. OK if there is no such tenant.
  absl::Status RemoveTenant(const std::string& name);
  // While the control store has a fault, no new jobs are accepted.
  void SetStateDisk(StateDisk disk) { context_.state_disk = std::move(disk); }
  // From now on, quotas apply to the sum of all daemons of a cluster. It must outlive every job.
  void SetGrants(Grants& grants) { context_.grants = &grants; }
  Grants* grants() const { return context_.grants; }
  Ledger& ledger() { return context_.ledger; }
  Usage UsageOf(const std::string& tenant) const;
  std::size_t tenants_per_page() const { return context_.options.turn.jobs; }
  // Payload of all gradients of these tenants since this daemon started. [tenant]
  std::map<std::string, std::uint64_t> PushedBytes(const std::vector<Tenant>& tenants) const;
  std::uint64_t MemoryLimitOf(const std::string& tenant) const;  // bytes; 0: no such tenant
  // nullopt if the session or snapshot is not known.
  std::optional<std::string> TenantOfSession(std::string_view session_id) const;
  std::optional<std::string> TenantOfSnapshot(std::string_view snapshot_id) const;

 private:
  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  Snapshots& snapshots_;
  TenantShares& shares_;
  TenantTotals& totals_;
};

}  // namespace phub::server
