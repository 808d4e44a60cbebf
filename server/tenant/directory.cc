#include "server/tenant/directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/status_text.h"
#include "common/tls/spiffe_id.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

absl::Status Refuse(IdentityFault& fault, IdentityFault what, const std::string& message) {
  fault = what;
  return absl::UnauthenticatedError(message);
}

}  // namespace

void Directory::SetTenant(const Tenant& tenant) {
  const std::lock_guard lock(mutex_);
  tenants_[tenant.name] = tenant;
}

void Directory::RemoveTenant(const std::string& name) {
  const std::lock_guard lock(mutex_);
  tenants_.erase(name);
  std::erase_if(tokens_, [&](const auto& entry) { return entry.second.tenant == name; });
}

void Directory::SetToken(const Token& token) {
  const std::lock_guard lock(mutex_);
  tokens_[token.id] = token;
  if (!token.key_id.empty() && !other_keys_.contains(token.key_id))
    missing_keys_.insert(token.key_id);
}

void Directory::RemoveToken(const std::string& id) {
  const std::lock_guard lock(mutex_);
  tokens_.erase(id);
}

void Directory::SetHashKey(std::string key) {
  const std::lock_guard lock(mutex_);
  hash_key_ = std::move(key);
}

void Directory::AddKey(const std::string& key_id, std::string key) {
  const std::lock_guard lock(mutex_);
  other_keys_[key_id] = std::move(key);
  missing_keys_.erase(key_id);
}

std::set<std::string> Directory::MissingKeys() const {
  const std::lock_guard lock(mutex_);
  return missing_keys_;
}

std::optional<Tenant> Directory::FindTenant(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return std::nullopt;
  return found->second;
}

std::optional<Token> Directory::FindToken(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(id);
  if (found == tokens_.end()) return std::nullopt;
  return found->second;
}

std::vector<Tenant> Directory::TenantsAfter(const std::string& after, std::size_t count_max) const {
  const std::lock_guard lock(mutex_);
  std::vector<Tenant> tenants;
  for (auto next = tenants_.upper_bound(after);
       next != tenants_.end() && tenants.size() < count_max; ++next) {
    tenants.push_back(next->second);
  }
  return tenants;
}

std::vector<Token> Directory::TokensAfter(const TokenPosition& after, std::size_t count_max,
                                          const std::string& tenant) const {
  using Found = std::pair<TokenPosition, const Token*>;
  const std::lock_guard lock(mutex_);
  std::vector<Found> found;
  for (const auto& [id, token] : tokens_) {
    TokenPosition position{token.created_at, id};
    if (position > after && (tenant.empty() || token.tenant == tenant))
      found.emplace_back(std::move(position), &token);
  }
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(std::min(count_max, found.size()));
  std::ranges::partial_sort(found, end, {}, &Found::first);
  std::vector<Token> tokens;
  for (auto next = found.begin(); next != end; ++next) tokens.push_back(*next->second);
  return tokens;
}

std::size_t Directory::tenant_count() const {
  const std::lock_guard lock(mutex_);
  return tenants_.size();
}

std::size_t Directory::token_count() const {
  const std::lock_guard lock(mutex_);
  return tokens_.size();
}

absl::StatusOr<Caller> Directory::IdentifyToken(std::string_view text, WallTimeNs now,
                                                IdentityFault& fault) const {
  const std::optional<TokenText> given = ParseToken(text);
  if (!given.has_value()) {
    return Refuse(fault, IdentityFault::kMalformed,
                  "the call's token is not a phub token; check that the token file is complete");
  }
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(given->id);
  const std::string* key = &hash_key_;
  if (found != tokens_.end() && !found->second.key_id.empty()) {
    const auto other = other_keys_.find(found->second.key_id);
    if (other == other_keys_.end()) {
      return Refuse(fault, IdentityFault::kForged,
                    fmt::format("token {} cannot be checked on this daemon, because the file of "
                                "token key {} is missing; ask the administrator",
                                given->id, found->second.key_id));
    }
    key = &other->second;
  }
  const std::string hash = KeyedHash(*key, given->secret);
  if (found == tokens_.end() || !EqualHashes(hash, found->second.hash)) {
    return Refuse(fault, IdentityFault::kForged,
                  fmt::format("token {} is not valid on this daemon; ask the administrator for a "
                              "new one",
                              given->id));
  }
  const Token& token = found->second;
  if (token.revoked_at != 0) {
    return Refuse(
        fault, IdentityFault::kRevoked,
        fmt::format("token {} was revoked; ask the administrator for a new one", token.id));
  }
  if (token.expires_at != 0 && now >= token.expires_at) {
    return Refuse(
        fault, IdentityFault::kExpired,
        fmt::format("token {} has expired; ask the administrator for a new one", token.id));
  }
  Caller caller;
  caller.role = token.role;
  caller.tenant = token.tenant;
  caller.name = token.tenant.empty() ? fmt::format("token {} ({})", token.id, ToString(token.role))
                                     : fmt::format("token {} of tenant {}", token.id, token.tenant);
  return caller;
}

absl::StatusOr<Caller> Directory::IdentifyUri(std::string_view uri, std::string_view trust_domain,
                                              IdentityFault& fault) const {
  const auto refuse = [&](std::string_view why) {
    return Refuse(fault, IdentityFault::kCertificate,
                  fmt::format("the certificate names {}, {}", uri, why));
  };
  const absl::StatusOr<SpiffeId> id = ParseSpiffeId(uri, trust_domain);
  if (!id.ok()) return refuse(MessageOf(id.status()));
  const std::optional<Role> role = ParseRole(id->role);
  if (!role.has_value())
    return refuse("whose path is not tenant/NAME, operator/NAME, admin/NAME or server/NAME");
  const std::string& name = id->name;
  if (*role == Role::kTenant && !FindTenant(name).has_value()) {
    fault = IdentityFault::kTenantGone;
    return absl::UnauthenticatedError(
        fmt::format("the certificate names tenant {}, which does not exist on this daemon", name));
  }
  Caller caller;
  caller.role = *role;
  if (*role == Role::kTenant) caller.tenant = name;
  caller.name = fmt::format("certificate {}", uri);
  return caller;
}

}  // namespace phub::server
