// What TenantAdmin does while a shared store does not answer, and when it answers again, see
// local_changes.h. And entries of the audit log that other code asks for.
#include <fmt/format.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {
namespace {

// After so many changes that were written, the file forgets them.
constexpr std::size_t kWrittenPerForget = 64;
// Changes that the store refuses, for example because their record is damaged, are tried again at
// the next tick.
constexpr std::size_t kRefusedMax = 16;
// Another daemon may change the record at the same time.
constexpr int kTriesMax = 5;

// Tenants have a budget of audit entries; administrators and operators do not. Without identities
// everyone is one caller, with one budget.
bool HasBudget(const Caller& caller) {
  return caller.open || (caller.role != Role::kAdmin && caller.role != Role::kOperator);
}

const std::string& BudgetOf(const Caller& caller) {
  return caller.tenant.empty() ? caller.name : caller.tenant;
}

std::string Joined(const std::string& first, const std::string& second) {
  return first.empty() ? second : first + "; " + second;
}

// Makes the record as strict as the change, and writes it with the change's audit entry.
template <typename Record, typename Write>
absl::Status MergeInto(ControlStore& store, const LocalChange& change,
                       absl::StatusOr<Record> record, Write write) {
  const absl::StatusOr<LocalOutcome> outcome = Merge(change, record);
  if (!outcome.ok()) return outcome.status();
  AuditNote note = change.note;
  absl::Status written;
  if (*outcome == LocalOutcome::kGone) {
    note.detail = Joined(note.detail, "it was deleted meanwhile");
    written = store.Audit(note);
  } else {
    if (*outcome == LocalOutcome::kOverrides)
      note.detail = Joined(note.detail, "overrides what another daemon changed meanwhile");
    written = write(*record, note);
  }
  if (!written.ok()) return written;
  if (*outcome == LocalOutcome::kOverrides) {
    LogWarning(
        "event=local_change_overrode action={} subject={} reason=\"another daemon changed the "
        "record in etcd meanwhile; the stricter state wins\"",
        note.action, note.subject);
  }
  LogInfo("event=local_change_written action={} subject={} outcome={}", note.action, note.subject,
          ToString(*outcome));
  return absl::OkStatus();
}

}  // namespace

bool TenantAdmin::MayRecord(const Caller& caller, TimeNs now) {
  return !HasBudget(caller) || budgets_.Take(BudgetOf(caller), now);
}

absl::Status TenantAdmin::Audit(const Caller& caller, AuditNote note) {
  note.at = WallNow();
  const auto write = [note](ControlStore& store) { return store.Audit(note); };
  if (!HasBudget(caller)) {
    absl::Status status =
        local_file_ == nullptr ? writer_.WriteOrDefer(write) : writer_.Write(write);
    if (!status.ok() && local_file_ != nullptr)
      status = Keep({.kind = LocalKind::kAudit, .note = note});
    ShareStoreState();
    return status;
  }
  const bool written = writer_.HasRoomForTenants() && writer_.Write(write).ok();
  if (!written) budgets_.NoteSuppressed(BudgetOf(caller), SystemClock().Now());
  return absl::OkStatus();
}

std::string TenantAdmin::Warning() const {
  if (local_file_ == nullptr) return writer_.Warning();
  return local_.Warning(local_file_->path());
}

absl::Status TenantAdmin::LoadLocal() {
  local_file_ = store_->local_changes();
  if (local_file_ == nullptr) return absl::OkStatus();
  absl::StatusOr<std::vector<LocalChange>> changes = local_file_->Read();
  if (!changes.ok()) return changes.status();
  if (!changes->empty()) {
    LogWarning(
        "event=local_changes_read count={} file=\"{}\" effect=\"suspensions and revocations apply; "
        "phubd writes them to etcd\"",
        changes->size(), local_file_->path());
  }
  local_.Set(*std::move(changes));
  writer_.SetBefore([this] { WriteLocal(); });
  return absl::OkStatus();
}

absl::Status TenantAdmin::Keep(const LocalChange& change) {
  const AuditNote& note = change.note;
  const bool is_entry = change.kind == LocalKind::kAudit;
  if (!is_entry && local_.Has(change.kind, note.subject)) return absl::OkStatus();
  std::vector<LocalChange> changes = local_.list();
  changes.push_back(change);
  if (absl::Status counts = CheckCounts(changes); !counts.ok()) return counts;
  const absl::Status written = local_file_->Write(changes);
  local_file_is_old_ = !written.ok();
  local_.SetFileFault(std::string(MessageOf(written)));
  // A drain must also work if the disk fails: its entry waits in memory.
  if (!written.ok() && !is_entry) return written;
  local_.Set(std::move(changes));
  const absl::Status reachable = store_->Reachable();
  LogWarning("event=change_kept_locally action={} subject=\"{}\" actor=\"{}\" reason=\"{}\"{}",
             note.action, note.subject, note.actor,
             reachable.ok() ? "the control store refuses changes now" : MessageOf(reachable),
             written.ok() ? "" : fmt::format(" error=\"{}\"", MessageOf(written)));
  return absl::OkStatus();
}

std::string TenantAdmin::MadeHere() const {
  const Grants* const grants = store_->grants();
  return fmt::format("made{} while etcd did not answer",
                     grants == nullptr ? "" : " at daemon " + grants->daemon_id());
}

absl::Status TenantAdmin::NotInStoreYet(const std::string& tenant) const {
  const absl::Status reachable = store_->Reachable();
  return absl::FailedPreconditionError(fmt::format(
      "nothing was changed: tenant {} was suspended at this daemon while etcd did not answer, and "
      "the suspension is not in etcd yet{}{}. Resume it when it is",
      tenant, reachable.ok() ? "" : ": ", MessageOf(reachable)));
}

absl::StatusOr<Tenant> TenantAdmin::KeepSuspension(const Caller& caller, const Tenant& tenant,
                                                   const absl::Status& why) {
  const AuditNote note{.actor = caller.name,
                       .peer = caller.peer,
                       .action = "tenant.suspend",
                       .subject = tenant.name,
                       .detail = MadeHere(),
                       .at = WallNow()};
  const absl::Status kept = Keep({LocalKind::kSuspend, tenant.name, tenant.revision, note});
  if (!kept.ok()) {
    return absl::Status(kept.code(), fmt::format("tenant {} was not suspended: {}; {}", tenant.name,
                                                 MessageOf(kept), MessageOf(why)));
  }
  store_->RepeatTenant(tenant.name);
  ShareStoreState();
  return tenant;
}

absl::StatusOr<Token> TenantAdmin::KeepRevocation(const Caller& caller, const Token& token,
                                                  const absl::Status& why) {
  const AuditNote note{.actor = caller.name,
                       .peer = caller.peer,
                       .action = "token.revoke",
                       .subject = token.id,
                       .detail = Joined(token.label, MadeHere()),
                       .at = token.revoked_at};
  const absl::Status kept = Keep({LocalKind::kRevoke, token.tenant, token.revision, note});
  if (!kept.ok()) {
    return absl::Status(kept.code(), fmt::format("token {} was not revoked: {}; {}", token.id,
                                                 MessageOf(kept), MessageOf(why)));
  }
  store_->RepeatToken(token.tenant, token.id);
  ShareStoreState();
  return token;
}

absl::Status TenantAdmin::WriteOut(const LocalChange& change) {
  const std::string& subject = change.note.subject;
  absl::Status status;
  for (int i = 0; i < kTriesMax; ++i) {
    switch (change.kind) {
      case LocalKind::kAudit: status = store_->Audit(change.note); break;
      case LocalKind::kSuspend:
        status = MergeInto(*store_, change, store_->FindTenant(subject),
                           [this](Tenant& tenant, const AuditNote& note) {
                             return store_->UpdateTenant(tenant, note);
                           });
        break;
      case LocalKind::kRevoke:
        status = MergeInto(*store_, change, store_->FindToken(change.tenant, subject),
                           [this](Token& token, const AuditNote& note) {
                             return store_->RevokeToken(token, note);
                           });
        break;
    }
    if (!absl::IsAborted(status)) break;
  }
  return status;
}

void TenantAdmin::WriteLocal() {
  if (local_file_ == nullptr) return;
  const std::vector<LocalChange> changes = local_.list();
  if (changes.empty() || !store_->Reachable().ok()) {
    if (local_file_is_old_) ReplaceLocal(changes);
    return;
  }
  std::vector<LocalChange> refused;  // they are tried last the next time
  absl::Status fault;
  std::size_t next = 0;
  const auto forget = [&] {
    std::vector<LocalChange> left(changes.begin() + static_cast<std::ptrdiff_t>(next),
                                  changes.end());
    left.insert(left.end(), refused.begin(), refused.end());
    ReplaceLocal(std::move(left));
  };
  while (next < changes.size() && refused.size() < kRefusedMax) {
    const absl::Status written = WriteOut(changes[next]);
    if (!written.ok() && !store_->Reachable().ok()) break;
    if (!written.ok()) {
      fault = written;
      refused.push_back(changes[next]);
    }
    ++next;
    if (next % kWrittenPerForget == 0) forget();
  }
  const bool must_turn = refused.size() == kRefusedMax && next < changes.size();
  if (next > refused.size() || must_turn) forget();
  const std::string text(MessageOf(fault));
  if (text != local_fault_ && !text.empty())
    LogError("event=local_change_refused error=\"{}\" effect=\"phubd tries again\"", text);
  local_fault_ = text;
}

void TenantAdmin::ReplaceLocal(std::vector<LocalChange> changes) {
  const absl::Status written = local_file_->Write(changes);
  local_file_is_old_ = !written.ok();
  local_.SetFileFault(std::string(MessageOf(written)));
  local_.Set(std::move(changes));
}

}  // namespace phub::server
