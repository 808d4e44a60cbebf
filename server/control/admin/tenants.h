// What admission knows of tenants, and to whom sessions and snapshots belong. Who may call is
// decided before (rpc/access.h). Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

  // Adds it, or changes its quota and whether it is suspended, from now on; weight and bandwidth of
  // jobs that run, too. The default tenant is there from the start.
  void SetTenant(const Tenant& tenant);
  // FAILED_PRECONDITION names the jobs that it still has. OK if it is not there.
  absl::Status RemoveTenant(const std::string& name);
  Usage UsageOf(const std::string& tenant) const;
  std::uint64_t PushedBytesOf(const std::string& tenant) const;  // ever, to this daemon
  std::uint64_t MemoryLimitOf(const std::string& tenant) const;  // bytes; 0: it is not there
  // Nothing if the session or snapshot is not known.
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
