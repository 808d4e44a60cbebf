// The records of the control store: tenants with their quotas, tokens, the audit log. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/wall_clock.h"

namespace phub::server {

// What a tenant may use at the same time. An empty limit means that only the daemon's limits apply.
struct Quota {
  std::optional<std::uint64_t> memory_bytes = {};  // reserved by its jobs
  std::optional<std::uint32_t> jobs = {};          // running or being torn down
  std::optional<std::uint32_t> workers = {};       // ranks of all its jobs, joined or not
  std::optional<std::uint32_t> keys = {};          // total over its jobs
  // Share of busy core loops relative to other tenants; empty: kWeightDefault of schedule/turn.h.
  std::optional<std::uint32_t> weight = {};
  std::optional<std::uint64_t> bandwidth_bytes = {};  // per second, pushed by all its workers
  friend bool operator==(const Quota&, const Quota&) = default;
};

struct Tenant {
  std::string name = {};
  bool suspended = false;  // no new jobs, and no workers may join
  Quota quota = {};
  WallTimeNs created_at = 0;
  bool encryption_required = false;  // lanes that leave a host are encrypted, or refused
  std::int64_t revision = 0;         // of its record in the control store; 0: it has none yet
  friend bool operator==(const Tenant&, const Tenant&) = default;
};

enum class Role : std::uint8_t {
  kNone,      // no identity
  kTenant,    // belongs to one tenant: sees and runs that tenant's jobs
  kOperator,  // operates the daemons: sees every job, drains, evicts
  kAdmin,     // an operator who also manages tenants, quotas and tokens
  kServer,    // another daemon of the rack
};
inline constexpr int kRoleCount = 5;
const char* ToString(Role role);
std::optional<Role> ParseRole(const std::string& text);

// A token as stored: enough to verify it, not enough to forge it.
struct Token {
  std::string id = {};  // public: 16 hexadecimal digits
  Role role = Role::kTenant;
  std::string tenant = {};  // only for kTenant, otherwise empty
  std::string label = {};   // its purpose, as the issuer wrote it
  std::string hash = {};    // HMAC-SHA256 of the secret
  WallTimeNs created_at = 0;
  WallTimeNs expires_at = 0;  // 0: never
  WallTimeNs revoked_at = 0;  // 0: not revoked
  std::string created_by = {};
  std::int64_t revision = 0;  // as in Tenant
  // The id of the token key that made the hash; empty: the store's own. Another one if the token
  // was copied from another store.
  std::string key_id = {};
};

// One administrative change, or a refused attempt at one.
struct AuditEntry {
  std::int64_t sequence = 0;  // 1, 2, 3, ... without a gap
  WallTimeNs at = 0;
  std::string actor = {};    // "token 3f... of tenant acme", "uid 0 on the control socket"
  std::string peer = {};     // address
  std::string action = {};   // "tenant.create"
  std::string subject = {};  // "acme"
  std::string detail = {};   // "memory 8GiB, jobs 4"
  std::string outcome = {};  // "ok", or why it was refused
  std::string chain = {};    // HMAC over this entry and the chain of the one before
};

}  // namespace phub::server
