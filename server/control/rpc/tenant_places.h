// The front's places for identified callers (server/front/crowd.h): who gets one, and who gives one
// up for a newcomer.
//
//   one tenant       at most half of all places, and three quarters of those for one address block
//   all together     known_max places, known_per_block_max of them for one address block
//
// When all are taken, by however many tenants, a newcomer gets a place of the tenant that has the
// most (at that address block, or in all), if that tenant has at least two more than the
// newcomer's. So a tenant without connections gets in as long as any tenant has two, and no tenant
// falls below an equal share. After a change the other tenant has at least as many as the
// newcomer's, so it cannot take the place back: places do not change hands for ever. Callers of
// other roles, such as administrators, take a place of any tenant, and never give one up.
//
// Pure logic. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/front/crowd.h"

namespace phub::server {

class TenantPlaces {
 public:
  explicit TenantPlaces(const CrowdLimits& limits)
      : limits_(limits),
        tenant_max_(limits.connections_max / 2),
        block_max_(limits.known_per_block_max - limits.known_per_block_max / 4) {}

  struct Holder {
    std::string tenant;  // empty: a caller that belongs to no tenant
    std::string block;   // of addresses
    friend auto operator<=>(const Holder&, const Holder&) = default;
  };
  struct Refusal {
    absl::Status status;
    bool crowd = false;  // all places are taken; otherwise the tenant has its share already
  };
  struct Answer {
    std::optional<Refusal> refusal;  // RESOURCE_EXHAUSTED
    // One of its connections must be closed. It counts as returned already.
    std::optional<Holder> displaced;
  };
  // For a new connection.
  Answer Take(const Holder& holder);
  // A connection has ended, displaced or not.
  void Return(const Holder& holder);

 private:
  using Counts = std::map<std::string, std::uint32_t>;  // not 0
  std::optional<Holder> LargestIn(const std::string& block) const;
  std::optional<Holder> LargestOfAll() const;
  void Decrement(const Holder& holder);

  const CrowdLimits limits_;
  const std::uint32_t tenant_max_;
  const std::uint32_t block_max_;
  std::uint32_t count_ = 0;
  Counts by_tenant_;
  Counts by_block_;
  std::map<std::string, Counts> tenants_;    // at a block
  std::map<std::string, Counts> blocks_;     // where a tenant has them
  std::map<Holder, std::uint32_t> leaving_;  // displaced, and not yet returned
};

}  // namespace phub::server
