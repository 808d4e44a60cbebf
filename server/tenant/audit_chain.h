// The chain of the audit log: each entry has an HMAC over itself and the chain of the entry before
// it, so a change of an entry, or a missing one, is detected. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/tenant/control_store.h"

namespace phub::server {

// The entry after the one with this sequence and chain (0 and empty: the first one). Long texts are
// shortened, and what does not print is replaced.
AuditEntry NextEntry(std::string_view key, std::int64_t sequence, const std::string& chain,
                     const AuditNote& note);
// The chain that the entry must have.
std::string ChainOf(std::string_view key, const AuditEntry& entry, const std::string& before);
// DATA_LOSS unless it is the entry `expected`, and follows the one with the chain `before`.
absl::Status CheckEntry(std::string_view key, const AuditEntry& entry, std::int64_t expected,
                        const std::string& before);

}  // namespace phub::server
