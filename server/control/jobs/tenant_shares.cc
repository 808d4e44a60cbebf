#include "server/control/jobs/tenant_shares.h"

#include <algorithm>

#include "server/control/on_control.h"

namespace phub::server {
namespace {

// The minimum per core loop, so that a tenant makes progress even with few chunks on it.
constexpr std::uint64_t kBandwidthPartMin = 64 * 1024;

// Bytes of parameters of a job on a core loop. The last chunk of a key counts as a full one.
std::uint64_t ChunkBytesOn(const Job& job, std::size_t core) {
  return std::uint64_t{job.chunk_numbers[job.own_bins.first + core].used()} *
         job.settings.chunk_bytes;
}

}  // namespace

std::uint32_t TenantShares::NumberOfTenant(const std::string& tenant) {
  PHUB_ON_CONTROL();
  const auto number = static_cast<std::uint32_t>(tenant_numbers_.size() + 1);
  return tenant_numbers_.try_emplace(tenant, number).first->second;
}

TenantShare TenantShares::ShareOf(const std::string& tenant, std::size_t core) const {
  PHUB_ON_CONTROL();
  const Quota quota = context_.ledger.QuotaOf(tenant);
  TenantShare share;
  share.weight = quota.weight.value_or(schedule::kWeightDefault);
  if (!quota.bandwidth_bytes) return share;
  std::uint64_t here = 0;
  std::uint64_t total = 0;
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->account.tenant != tenant) continue;
    here += ChunkBytesOn(*job, core);
    for (std::size_t each = 0; each < context_.cores.size(); ++each)
      total += ChunkBytesOn(*job, each);
  }
  const double part = total == 0 ? 1.0 : static_cast<double>(here) / static_cast<double>(total);
  share.bandwidth_bytes =
      std::max(kBandwidthPartMin,
               static_cast<std::uint64_t>(static_cast<double>(*quota.bandwidth_bytes) * part));
  return share;
}

void TenantShares::ShareOut(const std::string& tenant) {
  PHUB_ON_CONTROL();
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    const TenantShare share = ShareOf(tenant, core);
    for (const auto& job : jobs_.jobs()) {
      if (!job->running() || job->account.tenant != tenant) continue;
      // One shard is enough: the core loop keeps the share per tenant.
      context_.cores[core].Send(
          {.kind = Command::Kind::kSetShare, .shard = job->shards[core].get(), .share = share});
      break;
    }
  }
}

void TenantShares::ShareOutAgain(const std::string& tenant) {
  if (context_.ledger.QuotaOf(tenant).bandwidth_bytes) ShareOut(tenant);
}

}  // namespace phub::server
