// The records of the control store as values of etcd (proto/phub/store/records.proto). Each value
// has a tag that only phub can make, because the token key is not in etcd. So a value that
// something else wrote, a part of a value, and a value under another key are never used. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tenant/grant_plan.h"
#include "server/tenant/store_image.h"
#include "server/tenant/tenant.h"

namespace phub::server::etcd {

inline constexpr std::uint32_t kRecordVersion = 1;

// Keys after the prefix. In their order, the audit log is first, and everything that daemons keep
// in memory is in one range.
inline constexpr std::string_view kAuditKeys = "/audit/";
inline constexpr std::string_view kLogKeys = "/chains/";  // copied audit logs
inline constexpr std::string_view kWatchedBegin = "/cluster";
inline constexpr std::string_view kClusterKey = "/cluster";
inline constexpr std::string_view kDaemonKeys = "/daemons/";
inline constexpr std::string_view kEndpointKeys = "/endpoints/";
inline constexpr std::string_view kFrozenKey = "/frozen";
inline constexpr std::string_view kGrantKeys = "/grants/";
inline constexpr std::string_view kHeadKey = "/head";
inline constexpr std::string_view kPlaceKeys = "/places/";
inline constexpr std::string_view kRemovalKeys = "/removals/";
inline constexpr std::string_view kTenantKeys = "/tenants/";
inline constexpr std::string_view kTokenKeys = "/tokens/";
inline constexpr std::string_view kViewKey = "/view";
inline constexpr std::string_view kWatchedEnd = "/view0";
std::string AuditKey(std::int64_t sequence);
std::string LogKey(const std::string& id);
std::string LogEntryKey(const std::string& id, std::int64_t sequence);
std::string TenantKey(const std::string& name);
// Tokens of a tenant have a common prefix.
std::string TokenKey(const Token& token);
std::string TokensOfTenant(const std::string& name);
std::string DaemonKey(const std::string& id);
std::string GrantsOfTenant(const std::string& name);
std::string GrantKey(const std::string& tenant, const std::string& daemon);
std::string RemovalKey(const std::string& tenant);

struct HeadRecord {
  std::int64_t sequence = 0;
  std::string chain;
};

// A running daemon.
struct DaemonRecord {
  std::string id;
  std::string instance;  // random; another one after each start
  std::string host;
  std::string endpoint;
  WallTimeNs started_at = 0;
};

// The part of a tenant's quotas that one daemon may use.
struct GrantRecord {
  std::string tenant;
  std::string daemon;
  Usage amount;
  bool wanted = false;  // the daemon needs more than is left
  std::string removal;  // its answer to this removal of the tenant; empty: none
  Usage used;           // with the answer: what its jobs use
  friend bool operator==(const GrantRecord&, const GrantRecord&) = default;
};

// Why nothing can be changed (store_copy.h), and which process has decided that.
struct FreezeRecord {
  std::string why;
  std::string host;
  std::int64_t process = 0;
  WallTimeNs at = 0;
};

// A daemon wants to delete a tenant (removal.h).
struct RemovalRecord {
  std::string tenant;
  std::string id;
  std::string daemon;
};

// Makes and reads values of one cluster.
class Records {
 public:
  // `token_key`: 32 bytes. `cluster`: the cluster's id; empty only for the record of the cluster.
  Records(std::string token_key, std::string cluster);

  // What a record says of its token key; not secret.
  const std::string& key_id() const { return key_id_; }

  std::string Seal(std::string_view key, const std::string& body) const;
  // The body. FAILED_PRECONDITION: it has another token key or a newer version. DATA_LOSS:
  // something else has written or damaged it. The message continues "<key> in etcd".
  absl::StatusOr<std::string> Open(std::string_view key, const std::string& value) const;

  std::string OfTenant(const Tenant& tenant) const;
  absl::StatusOr<Tenant> ToTenant(std::string_view key, const std::string& value) const;
  std::string OfToken(const Token& token) const;
  absl::StatusOr<Token> ToToken(std::string_view key, const std::string& value) const;
  std::string OfHead(const HeadRecord& head) const;
  absl::StatusOr<HeadRecord> ToHead(const std::string& value) const;
  std::string OfDaemon(const DaemonRecord& daemon) const;
  absl::StatusOr<DaemonRecord> ToDaemon(std::string_view key, const std::string& value) const;
  std::string OfGrant(const GrantRecord& grant) const;
  absl::StatusOr<GrantRecord> ToGrant(std::string_view key, const std::string& value) const;
  std::string OfRemoval(const RemovalRecord& removal) const;
  absl::StatusOr<RemovalRecord> ToRemoval(std::string_view key, const std::string& value) const;
  // Without its entries; their number.
  std::string OfLog(const AuditLog& log, std::int64_t entries) const;
  absl::StatusOr<AuditLog> ToLog(std::string_view key, const std::string& value,
                                 std::int64_t& entries) const;
  std::string OfFreeze(const FreezeRecord& freeze) const;
  absl::StatusOr<FreezeRecord> ToFreeze(const std::string& value) const;
  std::string OfEntryAt(std::string_view key, const AuditEntry& entry,
                        const std::string& change) const;
  std::string OfEntry(const AuditEntry& entry, const std::string& change) const;
  absl::StatusOr<AuditEntry> ToEntry(std::string_view key, const std::string& value,
                                     std::string* change = nullptr) const;

 private:
  std::string TagOf(std::uint32_t version, std::string_view key, const std::string& body) const;

  const std::string token_key_;
  const std::string cluster_;
  const std::string key_id_;
};

}  // namespace phub::server::etcd
