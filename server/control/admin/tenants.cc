#include "server/control/admin/tenants.h"

namespace phub::server {

void Tenants::SetTenant(const Tenant& tenant) {
  context_.ledger.SetTenant(tenant);
  shares_.ShareOut(tenant.name);
}

absl::Status Tenants::RemoveTenant(const std::string& name) {
  return context_.ledger.RemoveTenant(name);
}

Usage Tenants::UsageOf(const std::string& tenant) const { return context_.ledger.UsageOf(tenant); }

std::uint64_t Tenants::PushedBytesOf(const std::string& tenant) const {
  std::uint64_t bytes = 0;
  const auto released = totals_.released().find(tenant);
  if (released != totals_.released().end()) bytes = released->second.gradient_bytes;
  for (const auto& job : jobs_.jobs()) {
    if (job->account.tenant == tenant) bytes += totals_.TotalsOf(*job).gradient_bytes;
  }
  return bytes;
}

std::uint64_t Tenants::MemoryLimitOf(const std::string& tenant) const {
  return context_.ledger.tenant_limit_bytes(tenant);
}

std::optional<std::string> Tenants::TenantOfSession(std::string_view session_id) const {
  const Seating* const seat = sessions_.Find(session_id);
  if (seat == nullptr) return std::nullopt;
  return seat->job->account.tenant;
}

std::optional<std::string> Tenants::TenantOfSnapshot(std::string_view snapshot_id) const {
  const Job* const job = snapshots_.FindSnapshot(snapshot_id);
  if (job == nullptr) return std::nullopt;
  return job->account.tenant;
}

}  // namespace phub::server
