// What control state consists of: tenants with their quotas, tokens, the audit log. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace phub::server {

// Since 1970, as people date things: these times outlive the daemon and its monotonic clock.
using WallTimeNs = std::int64_t;
WallTimeNs WallNow();

// What a tenant may hold at once; an empty one is not limited, but by what the daemon has.
struct Quota {
  std::optional<std::uint64_t> memory_bytes = {};  // reserved by its jobs
  std::optional<std::uint32_t> jobs = {};          // running or being torn down
  std::optional<std::uint32_t> workers =
      {};                                  // ranks of all its jobs, whether they have come or not
  std::optional<std::uint32_t> keys = {};  // of all its jobs
  friend bool operator==(const Quota&, const Quota&) = default;
};

struct Tenant {
  std::string name = {};
  bool suspended = false;  // no new jobs, and nobody joins one
  Quota quota = {};
  WallTimeNs created_at = 0;
  bool encryption_required = false;  // lanes that leave a host are encrypted, or refused
  friend bool operator==(const Tenant&, const Tenant&) = default;
};

enum class Role : std::uint8_t {
  kNone,      // nobody knows who it is
  kTenant,    // works for one tenant: sees and runs that tenant's jobs
  kOperator,  // runs the daemons: sees every job, drains, evicts
  kAdmin,     // the operator who also decides who may do what
  kServer,    // another daemon of the rack
};
inline constexpr int kRoleCount = 5;
const char* ToString(Role role);
std::optional<Role> ParseRole(const std::string& text);

// A token as it is stored: enough to recognise it, not enough to make it.
struct Token {
  std::string id = {};  // public: 16 hexadecimal digits
  Role role = Role::kTenant;
  std::string tenant = {};  // of kTenant; empty else
  std::string label = {};   // what it is for, in the words of whoever issued it
  std::string hash = {};    // HMAC-SHA256 of the secret
  WallTimeNs created_at = 0;
  WallTimeNs expires_at = 0;  // 0: never
  WallTimeNs revoked_at = 0;  // 0: it is not
  std::string created_by = {};
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
