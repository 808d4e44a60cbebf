// How many of the front's places for identified callers (server/front/crowd.h) one tenant takes: at
// most half of all, and three quarters of those for one address block. So a tenant cannot keep
// others out, not even at its own address. Callers of other roles are not limited.
//
// Pure logic. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/front/crowd.h"

namespace phub::server {

class TenantPlaces {
 public:
  explicit TenantPlaces(const CrowdLimits& limits)
      : tenant_max_(limits.connections_max / 2),
        block_max_(limits.known_per_block_max - limits.known_per_block_max / 4) {}

  // For a new connection of the tenant from this address block. RESOURCE_EXHAUSTED: it has its
  // share already.
  absl::Status Take(const std::string& tenant, const std::string& block);
  void Return(const std::string& tenant, const std::string& block);

 private:
  const std::uint32_t tenant_max_;
  const std::uint32_t block_max_;
  std::map<std::string, std::uint32_t> by_tenant_;                                // not 0
  std::map<std::pair<std::string, std::string>, std::uint32_t> by_tenant_block_;  // not 0
};

}  // namespace phub::server
