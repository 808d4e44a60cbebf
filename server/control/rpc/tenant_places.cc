#include "server/control/rpc/tenant_places.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/check.h"

namespace phub::server {
namespace {

using PlaceCounts = std::map<std::string, std::uint32_t>;

std::uint32_t CountOf(const PlaceCounts& counts, const std::string& key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

std::uint32_t CountOf(const std::map<std::string, PlaceCounts>& counts, const std::string& outer,
                      const std::string& inner) {
  const auto found = counts.find(outer);
  return found == counts.end() ? 0 : CountOf(found->second, inner);
}

void DecrementIn(PlaceCounts& counts, const std::string& key) {
  const auto found = counts.find(key);
  PHUB_CHECK(found != counts.end() && found->second > 0, "key={}", key);
  if (--found->second == 0) counts.erase(found);
}

void DecrementIn(std::map<std::string, PlaceCounts>& counts, const std::string& outer,
                 const std::string& inner) {
  const auto found = counts.find(outer);
  PHUB_CHECK(found != counts.end(), "key={}", outer);
  DecrementIn(found->second, inner);
  if (found->second.empty()) counts.erase(found);
}

// The key with the largest count, without the empty one.
std::optional<std::string> LargestOf(const PlaceCounts& counts) {
  std::optional<std::string> largest;
  std::uint32_t most = 0;
  for (const auto& [key, count] : counts) {
    if (key.empty() || count <= most) continue;
    largest = key;
    most = count;
  }
  return largest;
}

TenantPlaces::Answer Refused(bool crowd, std::string message) {
  return {.refusal = TenantPlaces::Refusal{absl::ResourceExhaustedError(std::move(message)), crowd},
          .displaced = {}};
}

}  // namespace

std::optional<TenantPlaces::Holder> TenantPlaces::LargestIn(const std::string& block) const {
  const auto found = tenants_.find(block);
  if (found == tenants_.end()) return std::nullopt;
  const auto tenant = LargestOf(found->second);
  if (!tenant.has_value()) return std::nullopt;
  return Holder{*tenant, block};
}

std::optional<TenantPlaces::Holder> TenantPlaces::LargestOfAll() const {
  const auto tenant = LargestOf(by_tenant_);
  if (!tenant.has_value()) return std::nullopt;
  return Holder{*tenant, *LargestOf(blocks_.at(*tenant))};
}

TenantPlaces::Answer TenantPlaces::Take(const Holder& holder) {
  const auto& [tenant, block] = holder;
  const std::uint32_t own = CountOf(by_tenant_, tenant);
  const std::uint32_t own_here = CountOf(blocks_, tenant, block);
  if (!tenant.empty() && (own >= tenant_max_ || own_here >= block_max_)) {
    const bool everywhere = own >= tenant_max_;
    return Refused(
        false,
        fmt::format(
            "tenant {} already has {} connections{}, the most that one tenant may have; close some",
            tenant, everywhere ? tenant_max_ : block_max_,
            everywhere ? "" : fmt::format(" from {}", block)));
  }
  Answer answer;
  const bool block_full = CountOf(by_block_, block) >= limits_.known_per_block_max;
  if (block_full || count_ >= limits_.known_max) {
    answer.displaced = block_full ? LargestIn(block) : LargestOfAll();
    std::uint32_t lead = 0;  // that the largest tenant has
    if (answer.displaced.has_value()) {
      const std::string& largest = answer.displaced->tenant;
      const std::uint32_t most =
          block_full ? CountOf(blocks_, largest, block) : CountOf(by_tenant_, largest);
      lead = tenant.empty() ? 2 : most - std::min(most, block_full ? own_here : own);
    }
    if (lead < 2) {
      return Refused(true, fmt::format("all {} places for connections{} are taken; try again later",
                                       block_full ? limits_.known_per_block_max : limits_.known_max,
                                       block_full ? fmt::format(" from {}", block) : ""));
    }
    Decrement(*answer.displaced);
    ++leaving_[*answer.displaced];
  }
  ++count_;
  ++by_tenant_[tenant];
  ++by_block_[block];
  ++tenants_[block][tenant];
  ++blocks_[tenant][block];
  return answer;
}

void TenantPlaces::Decrement(const Holder& holder) {
  --count_;
  DecrementIn(by_tenant_, holder.tenant);
  DecrementIn(by_block_, holder.block);
  DecrementIn(tenants_, holder.block, holder.tenant);
  DecrementIn(blocks_, holder.tenant, holder.block);
}

void TenantPlaces::Return(const Holder& holder) {
  const auto found = leaving_.find(holder);
  if (found == leaving_.end()) return Decrement(holder);
  if (--found->second == 0) leaving_.erase(found);
}

}  // namespace phub::server
