// Changes that a daemon keeps for itself while the shared control store does not answer:
// suspensions and revocations, which apply at this daemon at once, and entries of the audit log.
// They are durable on this host (LocalChangeFile). When the store answers again, TenantAdmin writes
// them to it and then forgets them. Each one only makes a state stricter, and the stricter state
// wins. So one that was written and not yet forgotten when phubd died can be written again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tenant/control_store.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// Stored in files: numbers never change.
enum class LocalKind : std::uint8_t { kSuspend = 1, kRevoke = 2, kAudit = 3 };

struct LocalChange {
  LocalKind kind = LocalKind::kAudit;
  std::string tenant = {};    // that is suspended, or whose token is revoked
  std::int64_t revision = 0;  // that the record had when it was made
  AuditNote note = {};        // its subject is the tenant or the token's id
  friend bool operator==(const LocalChange&, const LocalChange&) = default;
};

// Limits of memory and of the file. Administrators make far fewer changes during an outage.
inline constexpr std::size_t kLocalChangesMax = 1000;  // suspensions and revocations
inline constexpr std::size_t kLocalEntriesMax = 1000;  // entries of other calls

// RESOURCE_EXHAUSTED names the limit.
absl::Status CheckCounts(const std::vector<LocalChange>& changes);

// Where the changes are durable. State thread.
class LocalChangeFile {
 public:
  virtual ~LocalChangeFile() = default;
  // Empty if no file exists. Any other contents than Write() has written are an error.
  virtual absl::StatusOr<std::vector<LocalChange>> Read() = 0;
  // Replaces all of them, atomically. They are on disk when it returns.
  virtual absl::Status Write(const std::vector<LocalChange>& changes) = 0;
  virtual const std::string& path() const = 0;
};

// What becomes of a change when the store answers again.
enum class LocalOutcome : std::uint8_t {
  kWritten,    // nobody has changed the record since
  kAlready,    // the record is as strict already
  kOverrides,  // another daemon has changed the record, and it was not as strict
  kGone,       // the record does not exist any more
};
const char* ToString(LocalOutcome outcome);

// Makes the record in the store as strict as the change. NOT_FOUND: it does not exist. Another
// error of `record` is returned.
absl::StatusOr<LocalOutcome> Merge(const LocalChange& change, absl::StatusOr<Tenant>& record);
absl::StatusOr<LocalOutcome> Merge(const LocalChange& change, absl::StatusOr<Token>& record);

// The changes in memory, in the order in which they are written. Any thread.
class LocalChanges {
 public:
  void Set(std::vector<LocalChange> changes);
  std::vector<LocalChange> list() const;
  std::size_t size() const;
  // A suspension or revocation of this tenant or token.
  bool Has(LocalKind kind, const std::string& subject) const;
  // What applies at this daemon if the store has this record.
  Tenant Over(Tenant tenant) const;
  Token Over(Token token) const;
  // Why the file could not be written; empty: it was.
  void SetFileFault(std::string fault);
  // For answers to changes; empty if nothing waits. path: the file's.
  std::string Warning(const std::string& path) const;

 private:
  using Subject = std::pair<LocalKind, std::string>;

  mutable std::mutex mutex_;
  std::vector<LocalChange> changes_;        // this and the rest: under mutex_
  std::map<Subject, WallTimeNs> subjects_;  // when it was suspended or revoked
  std::string file_fault_;
};

}  // namespace phub::server
