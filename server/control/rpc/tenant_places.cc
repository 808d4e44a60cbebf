#include "server/control/rpc/tenant_places.h"

#include <fmt/format.h>

#include "common/base/check.h"

namespace phub::server {
namespace {

template <typename Counts>
std::uint32_t CountOf(const Counts& counts, const typename Counts::key_type& key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

template <typename Counts>
void Decrement(Counts& counts, const typename Counts::key_type& key) {
  const auto found = counts.find(key);
  PHUB_CHECK(found != counts.end() && found->second > 0);
  if (--found->second == 0) counts.erase(found);
}

}  // namespace

absl::Status TenantPlaces::Take(const std::string& tenant, const std::string& block) {
  const auto refuse = [&](std::uint32_t most, const std::string& where) {
    return absl::ResourceExhaustedError(fmt::format(
        "tenant {} already has {} connections{}, the most that one tenant may have; close some",
        tenant, most, where));
  };
  if (CountOf(by_tenant_, tenant) >= tenant_max_) return refuse(tenant_max_, "");
  if (CountOf(by_tenant_block_, {tenant, block}) >= block_max_)
    return refuse(block_max_, fmt::format(" from {}", block));
  ++by_tenant_[tenant];
  ++by_tenant_block_[{tenant, block}];
  return absl::OkStatus();
}

void TenantPlaces::Return(const std::string& tenant, const std::string& block) {
  Decrement(by_tenant_, tenant);
  Decrement(by_tenant_block_, {tenant, block});
}

}  // namespace phub::server
