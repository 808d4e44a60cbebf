// What admission knows of tenants, and whose is what.
#include "server/control/control.h"
#include "server/control/state.h"

namespace phub::server {

void Control::SetTenant(const Tenant& tenant) {
  state_->ledger.SetTenant(tenant);
  state_->ShareOut(tenant.name);
}

absl::Status Control::RemoveTenant(const std::string& name) {
  return state_->ledger.RemoveTenant(name);
}

Usage Control::UsageOf(const std::string& tenant) const { return state_->ledger.UsageOf(tenant); }

std::uint64_t Control::PushedBytesOf(const std::string& tenant) const {
  std::uint64_t bytes = 0;
  const auto released = state_->released_totals.find(tenant);
  if (released != state_->released_totals.end()) bytes = released->second.gradient_bytes;
  for (const auto& job : state_->jobs) {
    if (job->account.tenant == tenant) bytes += State::TotalsOf(*job).gradient_bytes;
  }
  return bytes;
}

std::uint64_t Control::MemoryLimitOf(const std::string& tenant) const {
  return state_->ledger.tenant_limit_bytes(tenant);
}

std::optional<std::string> Control::TenantOfSession(std::string_view session_id) const {
  const auto found = state_->sessions.find(session_id);
  if (found == state_->sessions.end()) return std::nullopt;
  return found->second.job->account.tenant;
}

std::optional<std::string> Control::TenantOfSnapshot(std::string_view snapshot_id) const {
  const Job* const job = state_->FindSnapshot(snapshot_id);
  if (job == nullptr) return std::nullopt;
  return job->account.tenant;
}

void Control::Count(ControlCounter counter, std::uint64_t value) {
  state_->counters.Add(counter, value);
}

}  // namespace phub::server
