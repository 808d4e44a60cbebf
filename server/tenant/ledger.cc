#include "server/tenant/ledger.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"

namespace phub::server {

std::string FormatBytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Ledger::Ledger(std::uint64_t memory_bytes_max) : limit_bytes_(memory_bytes_max) {
  AddTenant(kDefaultTenant, memory_bytes_max);
}

void Ledger::AddTenant(const std::string& tenant, std::uint64_t memory_bytes_max) {
  tenants_[tenant].limit_bytes = memory_bytes_max;
}

absl::Status Ledger::Reserve(const Account& account, std::uint64_t bytes) {
  const auto found = tenants_.find(account.tenant);
  PHUB_CHECK(found != tenants_.end(), "tenant={}", account.tenant);
  Tenant& tenant = found->second;
  const std::uint64_t tenant_left =
      tenant.limit_bytes > tenant.used_bytes ? tenant.limit_bytes - tenant.used_bytes : 0;
  const std::uint64_t left = std::min(limit_bytes_ - used_bytes_, tenant_left);
  if (bytes > left) {
    const bool of_tenant = tenant_left < limit_bytes_ - used_bytes_;
    return absl::ResourceExhaustedError(fmt::format(
        "job {} of tenant {} needs {} more memory, {} too much: of the {}'s {}, {} are reserved; "
        "end another job, use fewer staging bytes per lane, or raise the limit",
        account.job, account.tenant, FormatBytes(bytes), FormatBytes(bytes - left),
        of_tenant ? "tenant" : "daemon", FormatBytes(of_tenant ? tenant.limit_bytes : limit_bytes_),
        FormatBytes(of_tenant ? tenant.used_bytes : used_bytes_)));
  }
  accounts_[account] += bytes;
  tenant.used_bytes += bytes;
  used_bytes_ += bytes;
  return absl::OkStatus();
}

void Ledger::Return(const Account& account, std::uint64_t bytes) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end() && found->second >= bytes, "job={} bytes={}", account.job,
             bytes);
  Tenant& tenant = tenants_[account.tenant];
  PHUB_CHECK(tenant.used_bytes >= bytes && used_bytes_ >= bytes, "job={} bytes={}", account.job,
             bytes);
  found->second -= bytes;
  tenant.used_bytes -= bytes;
  used_bytes_ -= bytes;
}

std::uint64_t Ledger::Close(const Account& account) {
  const auto found = accounts_.find(account);
  if (found == accounts_.end()) return 0;
  const std::uint64_t bytes = found->second;
  Return(account, bytes);
  accounts_.erase(account);
  return bytes;
}

std::uint64_t Ledger::used_bytes(const Account& account) const {
  const auto found = accounts_.find(account);
  return found == accounts_.end() ? 0 : found->second;
}

std::uint64_t Ledger::tenant_used_bytes(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.used_bytes;
}

std::uint64_t Ledger::tenant_limit_bytes(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.limit_bytes;
}

}  // namespace phub::server
