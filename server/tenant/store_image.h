// All that a control store has, and what copying it into another one writes (`phubctl store copy`).
// Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// One chain of audit entries. It is written with one token key, and stays as it is in every store
// that it is copied to; so it can be verified there with that key.
struct AuditLog {
  std::string id = {};      // see AuditLogId; empty: it has no entries
  std::string key_id = {};  // the token key that it is chained with
  std::string source = {};  // the store that wrote it: "sqlite:/var/lib/phub on host node1"
  WallTimeNs closed_at = 0;
  std::vector<AuditEntry> entries = {};
};

struct StoreImage {
  std::string name = {};                         // "sqlite:/var/lib/phub"
  std::string key = {};                          // the token key of its own tokens and log
  std::map<std::string, std::string> keys = {};  // [key id]; its own, and others' that it needs
  std::vector<Tenant> tenants = {};
  std::vector<Token> tokens = {};  // with the id of their key, also if that is the store's own
  AuditLog log = {};
  std::vector<AuditLog> old_logs = {};  // copied from other stores
};

// "jobs 4, suspended".
std::string DescribeState(const Tenant& tenant);
// The chain of the first entry, which no other log has, as 16 hexadecimal digits.
std::string AuditLogId(const std::vector<AuditEntry>& entries);
// DATA_LOSS names the first entry of a log that was changed or is missing, or a key that is.
absl::Status CheckLogs(const StoreImage& image);

struct CopyPlan {
  std::map<std::string, std::string> keys = {};  // [key id], without the target's own
  std::vector<Tenant> tenants = {};
  std::vector<Token> tokens = {};   // without a key id: it is the target's own key
  std::vector<AuditLog> logs = {};  // only the entries that the target does not have
  std::size_t equal_tenants = 0;    // that the target has, or several sources
  std::size_t equal_tokens = 0;
  std::size_t entry_count() const;
  bool empty() const { return tenants.empty() && tokens.empty() && logs.empty(); }
};

// What the target lacks. Tenants are equal if their limits and states are, whenever they were
// created. FAILED_PRECONDITION: tenants, tokens or logs of the same name differ; the message names
// all of them with both values.
absl::StatusOr<CopyPlan> PlanCopy(const std::vector<StoreImage>& sources, const StoreImage& target);

}  // namespace phub::server
