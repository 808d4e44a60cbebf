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
  // What is free in the grant may be beyond a lower quota.
  for (const Resource resource : kGrantedResources) {
    const std::optional<std::uint64_t> before = LimitOf(holder.quota, resource);
    const std::optional<std::uint64_t> now = LimitOf(tenant.quota, resource);
    if (!now || (before && *before <= *now)) continue;
    std::uint64_t& grant = At(holder.grant, resource);
    grant = std::min(grant, At(ChargedTo(tenant.name, holder), resource));
  }
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
    const std::uint64_t bytes = holder.used.memory_bytes + LeftOf(name);
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, FormatBytes(bytes));
  }
  return text.empty() ? "nobody" : text;
}

absl::Status Ledger::Open(const Account& account, std::uint32_t workers, Charges charges) {
  const auto found = tenants_.find(account.tenant);
  PHUB_CHECK(found != tenants_.end(), "tenant={}", account.tenant);
  Holder& holder = found->second;
  if (absl::Status place = CheckPlace(account, holder); !place.ok()) return place;
  if (holder.quota.jobs && holder.used.jobs >= *holder.quota.jobs)
    return absl::ResourceExhaustedError(fmt::format(
        "job {} was not created: tenant {} may have {} jobs at once and already has {}: {}. End "
        "another job, or raise the quota",
        account.job, account.tenant, *holder.quota.jobs, holder.used.jobs,
        DescribeJobs(account.tenant)));
  if (holder.quota.workers && holder.used.workers + workers > *holder.quota.workers) {
    return absl::ResourceExhaustedError(fmt::format(
        "job {} was not created: it has {} workers, {} too many. Tenant {} may have {} workers at "
        "once, and its jobs have {}: {}. End another job, or raise the quota",
        account.job, workers, holder.used.workers + workers - *holder.quota.workers, account.tenant,
        *holder.quota.workers, holder.used.workers, DescribeJobs(account.tenant)));
  }
  const Usage charge = {.jobs = charges.job ? 1u : 0u, .workers = charges.workers ? workers : 0};
  if (!GrantCovers(account.tenant, charge)) return NotGranted(account, charge);
  const bool added = accounts_.try_emplace(account, Holding{0, workers, 0, 0, charges}).second;
  PHUB_CHECK(added, "tenant={} job={}", account.tenant, account.job);
  ++holder.used.jobs;
  holder.used.workers += workers;
  holder.charged.jobs += charge.jobs;
  holder.charged.workers += charge.workers;
  return absl::OkStatus();
}

absl::Status Ledger::CheckPlace(const Account& account, const Holder& holder) const {
  if (holder.leaving) {
    return absl::FailedPreconditionError(
        fmt::format("job {} was not created: tenant {} is being deleted. If that is refused, try "
                    "again after a few seconds",
                    account.job, account.tenant));
  }
  if (clock_ == nullptr || clock_->Now() < grants_end_) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("job {} was not created: this daemon has no place in the cluster now, so it "
                  "cannot know whether tenant {} still exists; try again when etcd answers",
                  account.job, account.tenant));
}

void Ledger::SetLeaving(const std::string& tenant, bool leaving) {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) found->second.leaving = leaving;
}

void Ledger::SetGrant(const std::string& tenant, const Usage& grant) {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) found->second.grant = grant;
}

Usage Ledger::ChargedTo(const std::string& tenant, const Holder& holder) const {
  Usage charged = holder.charged;
  charged.memory_bytes = holder.used.memory_bytes + LeftOf(tenant);
  return charged;
}

// Callers ask for a grant that covers `more` before; another reservation was faster.
absl::Status Ledger::NotGranted(const Account& account, const Usage& more) const {
  const GrantUse use = GrantUseOf(account.tenant);
  return absl::ResourceExhaustedError(fmt::format(
      "job {} needs {}, and this daemon's part of the cluster's quotas of tenant {} does not cover "
      "it (the part is {}, and the tenant's jobs here use {}); try again",
      account.job, Describe(more), account.tenant, Describe(use.grant), Describe(use.charged)));
}

bool Ledger::GrantCovers(const std::string& tenant, const Usage& more) const {
  const auto found = tenants_.find(tenant);
  if (clock_ == nullptr || found == tenants_.end()) return true;
  const Holder& holder = found->second;
  const Usage charged = ChargedTo(tenant, holder);
  return std::ranges::all_of(kGrantedResources, [&](Resource resource) {
    const std::uint64_t needed = At(more, resource);
    if (needed == 0 || !LimitOf(holder.quota, resource)) return true;
    return clock_->Now() < grants_end_ && At(charged, resource) <= At(holder.grant, resource) &&
           needed <= At(holder.grant, resource) - At(charged, resource);
  });
}

Ledger::GrantUse Ledger::GrantUseOf(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {};
  const Holder& holder = found->second;
  return {holder.quota, holder.grant, ChargedTo(tenant, holder), holder.leaving};
}

std::vector<std::string> Ledger::TenantsWithGrants() const {
  std::vector<std::string> names;
  for (const auto& [name, holder] : tenants_) {
    if (holder.grant != Usage{} || ChargedTo(name, holder) != Usage{}) names.push_back(name);
  }
  return names;
}

std::vector<std::string> Ledger::TenantsAboveGrants() const {
  std::vector<std::string> names;
  for (const auto& [name, holder] : tenants_) {
    const Usage charged = ChargedTo(name, holder);
    const bool above = std::ranges::any_of(kGrantedResources, [&](Resource resource) {
      return LimitOf(holder.quota, resource) && At(charged, resource) > At(holder.grant, resource);
    });
    if (above) names.push_back(name);
  }
  return names;
}

// Of jobs that have ended.
std::string Ledger::DescribeLeft(const std::string& tenant) const {
  const auto found = left_.find(tenant);
  if (found == left_.end()) return "";
  std::string text;
  std::size_t count = 0;
  for (const auto& [job, bytes] : found->second) {
    if (++count > kNamedJobsMax) continue;
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", job, FormatBytes(bytes));
  }
  if (count > kNamedJobsMax) text += fmt::format(" and {} more", count - kNamedJobsMax);
  return fmt::format(
      "Processes on the daemon's host still use shared memory of workers that left: {}. It is free "
      "when they unmap it or exit (grep -l phub- /proc/[0-9]*/maps finds them). ",
      text);
}

std::uint64_t Ledger::LeftOf(const std::string& tenant) const {
  std::uint64_t sum = 0;
  const auto found = left_.find(tenant);
  if (found == left_.end()) return 0;
  for (const auto& [job, bytes] : found->second) sum += bytes;
  return sum;
}

void Ledger::SetLeft(const std::string& tenant, const std::string& job, std::uint64_t bytes) {
  std::uint64_t& known = left_[tenant][job];
  left_bytes_ += bytes - known;
  known = bytes;
  if (bytes > 0) return;
  left_[tenant].erase(job);
  if (left_[tenant].empty()) left_.erase(tenant);
}

Ledger::Room Ledger::RoomOf(const std::string& tenant, bool with_left) const {
  const auto left = [](std::uint64_t limit, std::uint64_t used) {
    return limit > used ? limit - used : 0;
  };
  const auto found = tenants_.find(tenant);
  const std::uint64_t used = found == tenants_.end() ? 0 : found->second.used.memory_bytes;
  return {left(tenant_limit_bytes(tenant), used + (with_left ? LeftOf(tenant) : 0)),
          left(limit_bytes_, with_left ? used_bytes() : used_bytes_)};
}

bool Ledger::OnlyLeftIsInTheWay(const std::string& tenant, std::uint64_t bytes) const {
  const Room now = RoomOf(tenant, /*with_left=*/true);
  const Room then = RoomOf(tenant, /*with_left=*/false);
  return bytes > std::min(now.of_tenant, now.of_daemon) &&
         bytes <= std::min(then.of_tenant, then.of_daemon);
}

absl::Status Ledger::Reserve(const Account& account, std::uint64_t bytes) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end(), "tenant={} job={}", account.tenant, account.job);
  Holder& holder = tenants_[account.tenant];
  const Room room = RoomOf(account.tenant, /*with_left=*/true);
  const std::uint64_t free = std::min(room.of_daemon, room.of_tenant);
  if (bytes > free) {
    const bool of_tenant = room.of_tenant < room.of_daemon;
    const std::uint64_t limit = of_tenant ? tenant_limit_bytes(account.tenant) : limit_bytes_;
    const std::uint64_t used =
        of_tenant ? holder.used.memory_bytes + LeftOf(account.tenant) : used_bytes();
    return absl::ResourceExhaustedError(fmt::format(
        "job {} of tenant {} needs {} more memory, {} too much (exactly {} bytes). The {} is {}, "
        "and {} are reserved. The tenant's jobs hold: {}. {}End another job, use fewer staging "
        "bytes per lane, or raise the limit",
        account.job, account.tenant, FormatBytes(bytes), FormatBytes(bytes - free), bytes - free,
        of_tenant ? "tenant's memory quota" : "daemon's memory_max", FormatBytes(limit),
        FormatBytes(used), DescribeJobs(account.tenant), DescribeLeft(account.tenant)));
  }
  const Usage more = {.memory_bytes = bytes};
  if (!GrantCovers(account.tenant, more)) return NotGranted(account, more);
  found->second.bytes += bytes;
  holder.used.memory_bytes += bytes;
  used_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Ledger::AddKeys(const Account& account, std::uint64_t count, bool only_here) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end(), "tenant={} job={}", account.tenant, account.job);
  Holder& holder = tenants_[account.tenant];
  const std::uint64_t after = holder.used.keys + count;
  if (holder.quota.keys && after > *holder.quota.keys)
    return absl::ResourceExhaustedError(
        fmt::format("job {} adds {} keys, {} too many. Tenant {} may have {} keys at once, and its "
                    "jobs have {}",
                    account.job, count, after - *holder.quota.keys, account.tenant,
                    *holder.quota.keys, holder.used.keys));
  if (const Usage more = {.keys = count}; only_here || found->second.charges.keys) {
    if (!GrantCovers(account.tenant, more)) return NotGranted(account, more);
    holder.charged.keys += count;
    found->second.keys_charged += count;
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

void Ledger::ReturnKeys(const Account& account, std::uint64_t count, bool only_here) {
  const auto found = accounts_.find(account);
  PHUB_CHECK(found != accounts_.end() && found->second.keys >= count, "job={} keys={}", account.job,
             count);
  Holder& holder = tenants_[account.tenant];
  found->second.keys -= count;
  holder.used.keys -= count;
  if (!only_here && !found->second.charges.keys) return;
  PHUB_CHECK(found->second.keys_charged >= count, "job={} keys={}", account.job, count);
  found->second.keys_charged -= count;
  holder.charged.keys -= count;
}

std::uint64_t Ledger::Close(const Account& account) {
  const auto found = accounts_.find(account);
  if (found == accounts_.end()) return 0;
  const std::uint64_t bytes = found->second.bytes;
  Return(account, bytes);
  Holder& holder = tenants_[account.tenant];
  holder.used.keys -= found->second.keys;
  holder.charged.keys -= found->second.keys_charged;
  PHUB_CHECK(holder.used.jobs > 0 && holder.used.workers >= found->second.workers, "job={}",
             account.job);
  --holder.used.jobs;
  holder.used.workers -= found->second.workers;
  if (found->second.charges.job) --holder.charged.jobs;
  if (found->second.charges.workers) holder.charged.workers -= found->second.workers;
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
  if (found == tenants_.end()) return {};
  Usage usage = found->second.used;
  usage.memory_bytes += LeftOf(tenant);
  return usage;
}

std::uint64_t Ledger::tenant_limit_bytes(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  return std::min(limit_bytes_, found->second.quota.memory_bytes.value_or(limit_bytes_));
}

void Ledger::CheckInvariants() const {
  std::map<std::string, Usage> sums;
  std::map<std::string, Usage> charged;
  for (const auto& [account, holding] : accounts_) {
    PHUB_CHECK(tenants_.contains(account.tenant), "A1 tenant={} job={}", account.tenant,
               account.job);
    Usage& sum = sums[account.tenant];
    sum.memory_bytes += holding.bytes;
    sum.workers += holding.workers;
    sum.keys += holding.keys;
    ++sum.jobs;
    if (holding.charges.job) ++charged[account.tenant].jobs;
    charged[account.tenant].keys += holding.keys_charged;
    if (holding.charges.workers) charged[account.tenant].workers += holding.workers;
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, holder] : tenants_) {
    const Usage& sum = sums[name];
    PHUB_CHECK(holder.used.memory_bytes == sum.memory_bytes && holder.used.jobs == sum.jobs &&
                   holder.used.workers == sum.workers && holder.used.keys == sum.keys,
               "A2 tenant={} bytes={} of_jobs={}", name, holder.used.memory_bytes,
               sum.memory_bytes);
    PHUB_CHECK(holder.charged == charged[name], "A4 tenant={} charged={} of_jobs={}", name,
               Describe(holder.charged), Describe(charged[name]));
    bytes += sum.memory_bytes;
  }
  std::uint64_t left = 0;
  for (const auto& [tenant, jobs] : left_) left += LeftOf(tenant);
  PHUB_CHECK(left == left_bytes_, "A3 left={} sum={}", left_bytes_, left);
  PHUB_CHECK(bytes == used_bytes_ && used_bytes_ <= limit_bytes_, "A3 bytes={} used={} limit={}",
             bytes, used_bytes_, limit_bytes_);
}

}  // namespace phub::server
