// Tenants and tokens as every call needs them: in memory, behind a lock of its own that is never
// held while a disk works. TenantAdmin keeps it equal to the store. Any thread.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tenant/caller.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// Why an identity was not accepted; all but kNone are UNAUTHENTICATED.
enum class IdentityFault : std::uint8_t {
  kNone,
  kMalformed,  // not a token at all
  kForged,     // the id, or its secret, is unknown
  kExpired,
  kRevoked,
  kCertificate,  // of another trust domain, of no known role, or over
  kTenantGone,   // its tenant is not there
  kConflict,     // a certificate and a token, of different identities
};

class Directory {
 public:
  void SetTenant(const Tenant& tenant);
  void RemoveTenant(const std::string& name);  // and its tokens
  void SetToken(const Token& token);
  std::optional<Tenant> FindTenant(const std::string& name) const;
  std::optional<Token> FindToken(const std::string& id) const;
  std::vector<Tenant> Tenants() const;  // by name
  std::vector<Token> Tokens() const;    // oldest first
  void SetHashKey(std::string key);     // once, before the first call

  // Who brings this token. The message never holds more of it than the id.
  absl::StatusOr<Caller> IdentifyToken(std::string_view text, WallTimeNs now,
                                       IdentityFault& fault) const;
  // Who a certificate's URI names: spiffe://<trust domain>/tenant/<name>, /operator/<name>,
  // /admin/<name>, /server/<name>. That the certificate is right is TLS's to check.
  absl::StatusOr<Caller> IdentifyUri(std::string_view uri, std::string_view trust_domain,
                                     IdentityFault& fault) const;

 private:
  mutable std::mutex mutex_;
  std::string hash_key_;
  std::map<std::string, Tenant> tenants_;
  std::map<std::string, Token, std::less<>> tokens_;
};

}  // namespace phub::server
