// In-memory copy of the tenants and tokens, for checking every call. It has its own lock, which is
// never held during disk I/O. TenantAdmin keeps the copy equal to the store. Any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tenant/caller.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// Why an identity was refused; each reason except kNone gives UNAUTHENTICATED.
enum class IdentityFault : std::uint8_t {
  kNone,
  kMalformed,  // it does not have a token's form
  kForged,     // its id is unknown, or its secret is wrong
  kExpired,
  kRevoked,
  kCertificate,  // it has another trust domain or no known role, or has expired
  kTenantGone,   // its tenant does not exist
  kConflict,     // the call has a certificate and a token with different identities
};

// A place in the list of tokens. It stays valid if the token is removed.
struct TokenPosition {
  WallTimeNs created_at = std::numeric_limits<WallTimeNs>::min();
  std::string id;  // among tokens of the same time

  auto operator<=>(const TokenPosition&) const = default;
};

class Directory {
 public:
  void SetTenant(const Tenant& tenant);
  void RemoveTenant(const std::string& name);  // and its tokens
  void SetToken(const Token& token);
  void RemoveToken(const std::string& id);
  std::optional<Tenant> FindTenant(const std::string& name) const;
  std::optional<Token> FindToken(const std::string& id) const;
  // At most count_max tenants whose names follow `after`, by name. Empty: from the first one.
  std::vector<Tenant> TenantsAfter(const std::string& after, std::size_t count_max) const;
  // At most count_max tokens that follow `after`, oldest first; of one tenant only, if it is named.
  std::vector<Token> TokensAfter(const TokenPosition& after, std::size_t count_max,
                                 const std::string& tenant = {}) const;
  std::size_t tenant_count() const;
  std::size_t token_count() const;
  void SetHashKey(std::string key);  // once, before the first call
  // The key of tokens that were copied from another store.
  void AddKey(const std::string& key_id, std::string key);
  // Tokens need these, and are refused.
  std::set<std::string> MissingKeys() const;

  // The caller with this token. The message never contains more of the token than its id.
  absl::StatusOr<Caller> IdentifyToken(std::string_view text, WallTimeNs now,
                                       IdentityFault& fault) const;
  // The caller that a certificate's URI names: spiffe://<trust domain>/tenant/<name>,
  // /operator/<name>, /admin/<name>, /server/<name>. TLS has verified the certificate before.
  absl::StatusOr<Caller> IdentifyUri(std::string_view uri, std::string_view trust_domain,
                                     IdentityFault& fault) const;

 private:
  mutable std::mutex mutex_;
  std::string hash_key_;
  std::map<std::string, std::string> other_keys_;  // [key id]
  std::set<std::string> missing_keys_;
  std::map<std::string, Tenant> tenants_;
  std::map<std::string, Token, std::less<>> tokens_;
};

}  // namespace phub::server
