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

std::map<std::string, std::uint64_t> Tenants::PushedBytes(
    const std::vector<Tenant>& tenants) const {
  PHUB_ON_CONTROL();
  context_.turns.Add(tenants.size());
  std::map<std::string, std::uint64_t> bytes;
  for (const Tenant& tenant : tenants) {
    const auto released = totals_.released().find(tenant.name);
    bytes[tenant.name] = released == totals_.released().end() ? 0 : released->second.gradient_bytes;
  }
  for (const auto& job : jobs_.jobs()) {
    const auto of_tenant = bytes.find(job->account.tenant);
    if (of_tenant == bytes.end()) continue;
    for (const auto& shard : job->shards) of_tenant->second += shard->metrics.gradient_bytes.Get();
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
