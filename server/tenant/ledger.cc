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

namespace {

// The most jobs that a message names; a tenant may have many more.
constexpr std::size_t kNamedJobsMax = 8;

}  // namespace

Ledger::Ledger(std::uint64_t memory_bytes_max) : limit_bytes_(memory_bytes_max) {
  tenants_[kDefaultTenant] = {};
}

void Ledger::SetTenant(const Tenant& tenant) {
  Holder& holder = tenants_[tenant.name];
  holder.quota = tenant.quota;
  holder.suspended = tenant.suspended;
  holder.encryption_required = tenant.encryption_required;
}

absl::Status Ledger::RemoveTenant(const std::string& name) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return absl::OkStatus();
  if (found->second.used.jobs > 0) {
    return absl::FailedPreconditionError(
        fmt::format("tenant {} still has jobs: {}; suspend the tenant, evict the jobs, and try "
                    "again",
                    name, DescribeJobs(name)));
  }
  tenants_.erase(found);
  return absl::OkStatus();
}

bool Ledger::IsSuspended(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second.suspended;
}

bool Ledger::RequiresEncryption(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second.encryption_required;
}

std::string Ledger::DescribeJobs(const std::string& tenant) const {
  std::string text;
  std::size_t count = 0;
  for (const auto& [account, holding] : accounts_) {
    if (account.tenant != tenant || ++count > kNamedJobsMax) continue;
    text +=
        fmt::format("{}{} ({})", text.empty() ? "" : ", ", account.job, FormatBytes(holding.bytes));
  }
  if (count > kNamedJobsMax) text += fmt::format(" and {} more", count - kNamedJobsMax);
  return text.empty() ? "none" : text;
}

std::string Ledger::DescribeHolders() const {
  std::string text;
  for (const auto& [name, holder] : tenants_) {
    if (holder.used.memory_bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        FormatBytes(holder.used.memory_bytes));
  }
  return text.empty() ? "nobody" : text;
}

absl::Status Ledger::Open(const Account& account, std::uint32_t workers) {
  const auto found = tenants_.find(account.tenant);
  PHUB_CHECK(found != tenants_.end(), "tenant={}", account.tenant);
  Holder& holder = found->second;
  if (holder.quota.jobs && holder.used.jobs >= *holder.quota.jobs) {
    return absl::ResourceExhaustedError(fmt::format(
        "job {} was not created: tenant {} may have {} jobs at once and already has {}: {}. End "
        "another job, or raise the quota",
        account.job, account.tenant, *holder.quota.jobs, holder.used.jobs,
        DescribeJobs(account.tenant)));
  }
  if (holder.quota.workers && holder.used.workers + workers > *holder.quota.workers) {
    return absl::ResourceExhaustedError(fmt::format(
        "job {} was not created: it has {} workers, {} too many. Tenant {} may have {} workers at "
        "once, and its jobs have {}: {}. End another job, or raise the quota",
        account.job, workers, holder.used.workers + workers - *holder.quota.workers, account.tenant,
        *holder.quota.workers, holder.used.workers, DescribeJobs(account.tenant)));
  }
  const bool added = accounts_.try_emplace(account, Holding{0, workers, 0}).second;
  PHUB_CHECK(added, "tenant={} job={}", account.tenant, account.job);
  ++holder.used.jobs;
  holder.used.workers += workers;
  return absl::OkStatus();
}

absl::Status Ledger::Reserve(const Account& account, std::uint64_t bytes) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end(), "tenant={} job={}", account.tenant, account.job);
  Holder& holder = tenants_[account.tenant];
  const std::uint64_t limit = tenant_limit_bytes(account.tenant);
  const std::uint64_t tenant_left =
      limit > holder.used.memory_bytes ? limit - holder.used.memory_bytes : 0;
  const std::uint64_t daemon_left = limit_bytes_ - used_bytes_;
  const std::uint64_t left = std::min(daemon_left, tenant_left);
  if (bytes > left) {
    const bool of_tenant = tenant_left < daemon_left;
    return absl::ResourceExhaustedError(fmt::format(
        "job {} of tenant {} needs {} more memory, {} too much (exactly {} bytes). The {} is {}, "
        "and "
        "{} are reserved. The tenant's jobs hold: {}. End another job, use fewer staging bytes per "
        "lane, or raise the limit",
        account.job, account.tenant, FormatBytes(bytes), FormatBytes(bytes - left), bytes - left,
        of_tenant ? "tenant's memory quota" : "daemon's memory_max",
        FormatBytes(of_tenant ? limit : limit_bytes_),
        FormatBytes(of_tenant ? holder.used.memory_bytes : used_bytes_),
        DescribeJobs(account.tenant)));
  }
  found->second.bytes += bytes;
  holder.used.memory_bytes += bytes;
  used_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Ledger::AddKeys(const Account& account, std::uint64_t count) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end(), "tenant={} job={}", account.tenant, account.job);
  Holder& holder = tenants_[account.tenant];
  const std::uint64_t after = holder.used.keys + count;
  if (holder.quota.keys && after > *holder.quota.keys) {
    return absl::ResourceExhaustedError(
        fmt::format("job {} adds {} keys, {} too many. Tenant {} may have {} keys at once, and its "
                    "jobs have {}",
                    account.job, count, after - *holder.quota.keys, account.tenant,
                    *holder.quota.keys, holder.used.keys));
  }
  found->second.keys += count;
  holder.used.keys = after;
  return absl::OkStatus();
}

void Ledger::Return(const Account& account, std::uint64_t bytes) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end() && found->second.bytes >= bytes, "job={} bytes={}",
             account.job, bytes);
  Holder& holder = tenants_[account.tenant];
  PHUB_CHECK(holder.used.memory_bytes >= bytes && used_bytes_ >= bytes, "job={} bytes={}",
             account.job, bytes);
  found->second.bytes -= bytes;
  holder.used.memory_bytes -= bytes;
  used_bytes_ -= bytes;
}

void Ledger::ReturnKeys(const Account& account, std::uint64_t count) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end() && found->second.keys >= count, "job={} keys={}", account.job,
             count);
  Holder& holder = tenants_[account.tenant];
  PHUB_CHECK(holder.used.keys >= count, "job={} keys={}", account.job, count);
  found->second.keys -= count;
  holder.used.keys -= count;
}

std::uint64_t Ledger::Close(const Account& account) {
  const auto found = accounts_.find(account);
  if (found == accounts_.end()) return 0;
  const std::uint64_t bytes = found->second.bytes;
  Return(account, bytes);
  ReturnKeys(account, found->second.keys);
  Holder& holder = tenants_[account.tenant];
  PHUB_CHECK(holder.used.jobs > 0 && holder.used.workers >= found->second.workers, "job={}",
             account.job);
  --holder.used.jobs;
  holder.used.workers -= found->second.workers;
  accounts_.erase(found);
  return bytes;
}

std::uint64_t Ledger::used_bytes(const Account& account) const {
  const auto found = accounts_.find(account);
  return found == accounts_.end() ? 0 : found->second.bytes;
}

Quota Ledger::QuotaOf(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? Quota{} : found->second.quota;
}

Usage Ledger::UsageOf(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? Usage{} : found->second.used;
}

std::uint64_t Ledger::tenant_limit_bytes(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  return std::min(limit_bytes_, found->second.quota.memory_bytes.value_or(limit_bytes_));
}

void Ledger::CheckInvariants() const {
  std::map<std::string, Usage> sums;
  for (const auto& [account, holding] : accounts_) {
    PHUB_CHECK(tenants_.contains(account.tenant), "A1 tenant={} job={}", account.tenant,
               account.job);
    Usage& sum = sums[account.tenant];
    sum.memory_bytes += holding.bytes;
    sum.workers += holding.workers;
    sum.keys += holding.keys;
    ++sum.jobs;
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, holder] : tenants_) {
    const Usage& sum = sums[name];
    PHUB_CHECK(holder.used.memory_bytes == sum.memory_bytes && holder.used.jobs == sum.jobs &&
                   holder.used.workers == sum.workers && holder.used.keys == sum.keys,
               "A2 tenant={} bytes={} of_jobs={}", name, holder.used.memory_bytes,
               sum.memory_bytes);
    bytes += sum.memory_bytes;
  }
  PHUB_CHECK(bytes == used_bytes_ && used_bytes_ <= limit_bytes_, "A3 bytes={} used={} limit={}",
             bytes, used_bytes_, limit_bytes_);
}

}  // namespace phub::server
