#include "server/tenant/local_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace phub::server {
namespace {

std::size_t EntriesIn(const std::vector<LocalChange>& changes) {
  return static_cast<std::size_t>(
      std::count_if(changes.begin(), changes.end(),
                    [](const LocalChange& change) { return change.kind == LocalKind::kAudit; }));
}

template <typename Record>
LocalOutcome Compare(const LocalChange& change, const Record& record, bool is_strict) {
  if (is_strict) return LocalOutcome::kAlready;
  return record.revision == change.revision ? LocalOutcome::kWritten : LocalOutcome::kOverrides;
}

}  // namespace

absl::Status CheckCounts(const std::vector<LocalChange>& changes) {
  const std::size_t entries = EntriesIn(changes);
  if (changes.size() - entries > kLocalChangesMax) {
    return absl::ResourceExhaustedError(
        fmt::format("a daemon keeps at most {} suspensions and revocations while the control store "
                    "does not answer",
                    kLocalChangesMax));
  }
  if (entries > kLocalEntriesMax) {
    return absl::ResourceExhaustedError(fmt::format(
        "a daemon keeps at most {} audit entries while the control store does not answer",
        kLocalEntriesMax));
  }
  return absl::OkStatus();
}

const char* ToString(LocalOutcome outcome) {
  switch (outcome) {
    case LocalOutcome::kWritten: return "written";
    case LocalOutcome::kAlready: return "already";
    case LocalOutcome::kOverrides: return "overrides";
    case LocalOutcome::kGone: return "gone";
  }
  return "";
}

absl::StatusOr<LocalOutcome> Merge(const LocalChange& change, absl::StatusOr<Tenant>& record) {
  if (absl::IsNotFound(record.status())) return LocalOutcome::kGone;
  if (!record.ok()) return record.status();
  const LocalOutcome outcome = Compare(change, *record, record->suspended);
  record->suspended = true;
  return outcome;
}

absl::StatusOr<LocalOutcome> Merge(const LocalChange& change, absl::StatusOr<Token>& record) {
  if (absl::IsNotFound(record.status())) return LocalOutcome::kGone;
  if (!record.ok()) return record.status();
  const LocalOutcome outcome = Compare(change, *record, record->revoked_at != 0);
  if (record->revoked_at == 0) record->revoked_at = change.note.at;
  return outcome;
}

void LocalChanges::Set(std::vector<LocalChange> changes) {
  std::map<Subject, WallTimeNs> subjects;
  for (const LocalChange& change : changes) {
    if (change.kind != LocalKind::kAudit)
      subjects.emplace(Subject(change.kind, change.note.subject), change.note.at);
  }
  const std::lock_guard lock(mutex_);
  changes_ = std::move(changes);
  subjects_ = std::move(subjects);
}

std::vector<LocalChange> LocalChanges::list() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

std::size_t LocalChanges::size() const {
  const std::lock_guard lock(mutex_);
  return changes_.size();
}

bool LocalChanges::Has(LocalKind kind, const std::string& subject) const {
  const std::lock_guard lock(mutex_);
  return subjects_.contains({kind, subject});
}

Tenant LocalChanges::Over(Tenant tenant) const {
  const std::lock_guard lock(mutex_);
  if (subjects_.contains({LocalKind::kSuspend, tenant.name})) tenant.suspended = true;
  return tenant;
}

Token LocalChanges::Over(Token token) const {
  const std::lock_guard lock(mutex_);
  const auto revoked = subjects_.find({LocalKind::kRevoke, token.id});
  if (revoked != subjects_.end() && token.revoked_at == 0) token.revoked_at = revoked->second;
  return token;
}

void LocalChanges::SetFileFault(std::string fault) {
  const std::lock_guard lock(mutex_);
  file_fault_ = std::move(fault);
}

std::string LocalChanges::Warning(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  if (changes_.empty()) return {};
  const std::size_t entries = EntriesIn(changes_);
  const std::size_t changes = changes_.size() - entries;
  std::string text;
  if (changes > 0) {
    text = fmt::format(
        "{} {} only at this daemon, and will be written to etcd when it answers", changes,
        changes == 1 ? "suspension or revocation applies" : "suspensions and revocations apply");
  }
  if (entries > 0) {
    text += fmt::format(
        "{}{} for etcd", text.empty() ? "" : "; ",
        entries == 1 ? "1 audit entry waits" : fmt::format("{} audit entries wait", entries));
  }
  if (!file_fault_.empty()) return text + "; lost if phubd stops: " + file_fault_;
  return text + "; kept in " + path;
}

}  // namespace phub::server
