#include "server/control/admin/tenants.h"

#include "server/control/on_control.h"

namespace phub::server {

void Tenants::SetTenant(const Tenant& tenant) {
  PHUB_ON_CONTROL();
  context_.ledger.SetTenant(tenant);
  shares_.ShareOut(tenant.name);
}

absl::Status Tenants::RemoveTenant(const std::string& name) {
  return context_.ledger.RemoveTenant(name);
}

Usage Tenants::UsageOf(const std::string& tenant) const { return context_.ledger.UsageOf(tenant); }

std::map<std::string, std::uint64_t> Tenants::PushedBytes(const std::string& only_tenant) const {
  PHUB_ON_CONTROL();
  std::map<std::string, std::uint64_t> bytes;
  if (only_tenant.empty()) {
    for (const auto& [tenant, totals] : totals_.released()) bytes[tenant] = totals.gradient_bytes;
  } else if (const auto found = totals_.released().find(only_tenant);
             found != totals_.released().end()) {
    bytes[only_tenant] = found->second.gradient_bytes;
  }
  for (const auto& job : jobs_.jobs()) {
    if (!only_tenant.empty() && job->account.tenant != only_tenant) continue;
    std::uint64_t& of_tenant = bytes[job->account.tenant];
    for (const auto& shard : job->shards) of_tenant += shard->metrics.gradient_bytes.Get();
  }
  return bytes;
}

std::uint64_t Tenants::MemoryLimitOf(const std::string& tenant) const {
  return context_.ledger.tenant_limit_bytes(tenant);
}

std::optional<std::string> Tenants::TenantOfSession(std::string_view session_id) const {
  PHUB_ON_CONTROL();
  const Seating* const seat = sessions_.Find(session_id);
  if (seat == nullptr) return std::nullopt;
  return seat->job->account.tenant;
}

std::optional<std::string> Tenants::TenantOfSnapshot(std::string_view snapshot_id) const {
  PHUB_ON_CONTROL();
  const Job* const job = snapshots_.FindSnapshot(snapshot_id);
  if (job == nullptr) return std::nullopt;
  return job->account.tenant;
}

}  // namespace phub::server
