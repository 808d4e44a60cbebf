#include "server/tenant/audit_chain.h"

#include <fmt/format.h>

#include "common/base/printable.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

constexpr std::size_t kAuditTextBytesMax = 1024;

}  // namespace

AuditEntry NextEntry(std::string_view key, std::int64_t sequence, const std::string& chain,
                     const AuditNote& note) {
  const auto shortened = [](const std::string& text) {
    return Printable(text, kAuditTextBytesMax);
  };
  AuditEntry entry;
  entry.sequence = sequence + 1;
  entry.at = note.at != 0 ? note.at : WallNow();
  entry.actor = shortened(note.actor);
  entry.peer = shortened(note.peer);
  entry.action = shortened(note.action);
  entry.subject = shortened(note.subject);
  entry.detail = shortened(note.detail);
  entry.outcome = shortened(note.outcome);
  entry.chain = ChainOf(key, entry, chain);
  return entry;
}

std::string ChainOf(std::string_view key, const AuditEntry& entry, const std::string& before) {
  std::string text = before + fmt::format("{}|{}", entry.sequence, entry.at);
  for (const std::string* field :
       {&entry.actor, &entry.peer, &entry.action, &entry.subject, &entry.detail, &entry.outcome}) {
    text += fmt::format("|{}:{}", field->size(), *field);  // sizes make the encoding unambiguous
  }
  return KeyedHash(key, text);
}

absl::Status CheckEntry(std::string_view key, const AuditEntry& entry, std::int64_t expected,
                        const std::string& before) {
  if (entry.sequence != expected) {
    return absl::DataLossError(fmt::format("audit entry {} is missing", expected));
  }
  if (!EqualHashes(entry.chain, ChainOf(key, entry, before))) {
    return absl::DataLossError(fmt::format("audit entry {} was changed", entry.sequence));
  }
  return absl::OkStatus();
}

}  // namespace phub::server
