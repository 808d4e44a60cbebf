// What tenants may have of the core loops: weights, and bandwidths in parts.
//
// A tenant's bandwidth is of the daemon. Each core loop limits its part by itself, so that none has
// to ask another: the parts are as the tenant's chunks lie on the core loops, and are worked out
// anew whenever that changes.
#include "server/control/state.h"

namespace phub::server {
namespace {

// Nobody waits for ever, even where hardly any of his chunks lie.
constexpr std::uint64_t kBandwidthPartMin = 64 * 1024;

// Bytes of parameters of a job on a core loop, but for ends of keys.
std::uint64_t ChunkBytesOn(const Job& job, std::size_t core) {
  return std::uint64_t{job.chunk_counts[job.own_bins.first + core]} * job.settings.chunk_bytes;
}

}  // namespace

std::uint32_t Control::State::NumberOfTenant(const std::string& tenant) {
  const auto number = static_cast<std::uint32_t>(tenant_numbers.size() + 1);
  return tenant_numbers.try_emplace(tenant, number).first->second;
}

TenantShare Control::State::ShareOf(const std::string& tenant, std::size_t core) const {
  const Quota quota = ledger.QuotaOf(tenant);
  TenantShare share;
  share.weight = quota.weight.value_or(schedule::kWeightDefault);
  if (!quota.bandwidth_bytes) return share;
  std::uint64_t here = 0;
  std::uint64_t total = 0;
  for (const auto& job : jobs) {
    if (!job->running() || job->account.tenant != tenant) continue;
    here += ChunkBytesOn(*job, core);
    for (std::size_t each = 0; each < links.size(); ++each) total += ChunkBytesOn(*job, each);
  }
  const double part = total == 0 ? 1.0 : static_cast<double>(here) / static_cast<double>(total);
  share.bandwidth_bytes =
      std::max(kBandwidthPartMin,
               static_cast<std::uint64_t>(static_cast<double>(*quota.bandwidth_bytes) * part));
  return share;
}

void Control::State::ShareOut(const std::string& tenant) {
  for (std::size_t core = 0; core < links.size(); ++core) {
    const TenantShare share = ShareOf(tenant, core);
    for (const auto& job : jobs) {
      if (!job->running() || job->account.tenant != tenant) continue;
      // One job's shard is enough: the core loop keeps it of the tenant.
      links[core].Send(
          {.kind = Command::Kind::kSetShare, .shard = job->shards[core].get(), .share = share});
      break;
    }
  }
}

void Control::State::ShareOutAnew(const std::string& tenant) {
  if (ledger.QuotaOf(tenant).bandwidth_bytes) ShareOut(tenant);
}

}  // namespace phub::server
