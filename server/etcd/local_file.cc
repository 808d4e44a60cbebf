#include "server/etcd/local_file.h"

#include <fmt/format.h>

#include <cstdint>

#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "phub/store/records.pb.h"
#include "server/etcd/record_parse.h"

namespace phub::server::etcd {
namespace {

namespace stored = ::phub::store::v1;

// Room for all changes that CheckCounts() permits, with long labels and reasons.
constexpr std::size_t kFileBytesMax = 4 << 20;

bool IsValid(const LocalChange& change) {
  switch (change.kind) {
    case LocalKind::kSuspend:
      return !change.note.subject.empty() && change.tenant == change.note.subject;
    case LocalKind::kRevoke: return !change.note.subject.empty() && change.note.at != 0;
    case LocalKind::kAudit: return true;
  }
  return false;
}

absl::StatusOr<std::vector<LocalChange>> Parsed(const absl::StatusOr<std::string>& body) {
  const auto message = Parse<stored::StoredLocalChanges>(body);
  if (!message.ok()) return message.status();
  std::vector<LocalChange> changes;
  for (const stored::StoredLocalChange& each : message->changes()) {
    if (each.kind() > UINT8_MAX) return Damaged();
    const stored::StoredAuditEntry& note = each.note();
    changes.push_back({.kind = static_cast<LocalKind>(each.kind()),
                       .tenant = each.tenant(),
                       .revision = each.revision(),
                       .note = {.actor = note.actor(),
                                .peer = note.peer(),
                                .action = note.action(),
                                .subject = note.subject(),
                                .detail = note.detail(),
                                .outcome = note.outcome(),
                                .at = note.at_ns()}});
    if (!IsValid(changes.back())) return Damaged();
  }
  if (absl::Status counts = CheckCounts(changes); !counts.ok()) return counts;
  return changes;
}

}  // namespace

LocalFile::LocalFile(const Records& records, const std::string& token_key_path,
                     const std::string& daemon)
    : records_(records),
      path_(fmt::format("{}.{}.local", token_key_path, daemon)),
      key_("/local/" + daemon) {}

absl::StatusOr<std::vector<LocalChange>> LocalFile::Read() {
  const absl::StatusOr<std::string> text = ReadSecretFile(path_, kFileBytesMax);
  if (absl::IsNotFound(text.status())) return std::vector<LocalChange>();
  if (!text.ok()) return text.status();
  auto changes = Parsed(records_.Open(key_, *text));
  if (changes.ok()) return changes;
  return absl::DataLossError(fmt::format(
      "{} cannot be read: it is damaged or was changed, or another daemon, another cluster or a "
      "newer phubd has written it. It has suspensions and revocations that may not be in etcd; "
      "restore it, or remove it and repeat them",
      path_));
}

absl::Status LocalFile::Write(const std::vector<LocalChange>& changes) {
  if (changes.empty()) return RemoveFileDurably(path_);
  stored::StoredLocalChanges message;
  for (const LocalChange& change : changes) {
    stored::StoredLocalChange& each = *message.add_changes();
    each.set_kind(static_cast<std::uint32_t>(change.kind));
    each.set_tenant(change.tenant);
    each.set_revision(change.revision);
    stored::StoredAuditEntry& note = *each.mutable_note();
    note.set_at_ns(change.note.at);
    note.set_actor(change.note.actor);
    note.set_peer(change.note.peer);
    note.set_action(change.note.action);
    note.set_subject(change.note.subject);
    note.set_detail(change.note.detail);
    note.set_outcome(change.note.outcome);
  }
  const std::string text = records_.Seal(key_, message.SerializeAsString());
  if (text.size() > kFileBytesMax) {
    return absl::ResourceExhaustedError(
        fmt::format("{} would be larger than {} bytes, its limit", path_, kFileBytesMax));
  }
  return WriteFileDurably(path_, text, kSecretFileMode, /*replace=*/true);
}

}  // namespace phub::server::etcd
