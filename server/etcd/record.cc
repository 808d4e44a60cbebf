#include "server/etcd/record.h"

#include <fmt/format.h>

#include "common/base/printable.h"
#include "phub/store/records.pb.h"
#include "server/etcd/record_parse.h"
#include "server/tenant/token.h"

namespace phub::server::etcd {
namespace {

namespace stored = ::phub::store::v1;

constexpr std::size_t kKeyIdBytesShown = 8;

}  // namespace

std::string AuditKey(std::int64_t sequence) {
  return fmt::format("{}{:019}", kAuditKeys, sequence);
}
std::string LogKey(const std::string& id) { return fmt::format("{}{}", kLogKeys, id); }
std::string LogEntryKey(const std::string& id, std::int64_t sequence) {
  return fmt::format("{}{}/{:019}", kLogKeys, id, sequence);
}
std::string TenantKey(const std::string& name) { return fmt::format("{}{}", kTenantKeys, name); }
// '@' is in no name of a tenant.
std::string TokensOfTenant(const std::string& name) {
  return fmt::format("{}{}/", kTokenKeys, name.empty() ? "@" : name);
}
std::string TokenKey(const Token& token) { return TokensOfTenant(token.tenant) + token.id; }

std::string DaemonKey(const std::string& id) { return fmt::format("{}{}", kDaemonKeys, id); }
std::string GrantsOfTenant(const std::string& name) {
  return fmt::format("{}{}/", kGrantKeys, name);
}
std::string GrantKey(const std::string& tenant, const std::string& daemon) {
  return GrantsOfTenant(tenant) + daemon;
}

std::string RemovalKey(const std::string& tenant) {
  return fmt::format("{}{}", kRemovalKeys, tenant);
}

Records::Records(std::string token_key, std::string cluster)
    : token_key_(std::move(token_key)),
      cluster_(std::move(cluster)),
      key_id_(TokenKeyId(token_key_)) {}

std::string Records::TagOf(std::uint32_t version, std::string_view key,
                           const std::string& body) const {
  return KeyedHash(token_key_, fmt::format("record {} {}:{} {}:{} ", version, cluster_.size(),
                                           cluster_, key.size(), key) +
                                   body);
}

std::string Records::Seal(std::string_view key, const std::string& body) const {
  stored::Record record;
  record.set_version(kRecordVersion);
  record.set_key_id(key_id_);
  record.set_body(body);
  record.set_tag(TagOf(kRecordVersion, key, body));
  return record.SerializeAsString();
}

absl::StatusOr<std::string> Records::Open(std::string_view key, const std::string& value) const {
  stored::Record record;
  if (!record.ParseFromString(value) || record.version() == 0) return Damaged();
  if (record.version() > kRecordVersion) {
    return absl::FailedPreconditionError(
        fmt::format("in etcd has version {}, but this phubd supports versions up to {}; a newer "
                    "phubd has written it",
                    record.version(), kRecordVersion));
  }
  if (record.key_id() != key_id_) {
    return absl::FailedPreconditionError(fmt::format(
        "in etcd was written with token key {}, but this daemon's token_key is {}; "
        "copy the file from a daemon of this cluster, or set another etcd_prefix",
        record.key_id().empty() ? "(none)" : Printable(record.key_id(), kKeyIdBytesShown),
        key_id_));
  }
  if (!EqualHashes(record.tag(), TagOf(record.version(), key, record.body()))) return Damaged();
  return record.body();
}

std::string Records::OfTenant(const Tenant& tenant) const {
  stored::StoredTenant message;
  message.set_name(tenant.name);
  message.set_suspended(tenant.suspended);
  message.set_created_at_ns(tenant.created_at);
  message.set_encryption_required(tenant.encryption_required);
  const Quota& quota = tenant.quota;
  if (quota.memory_bytes) message.set_memory_bytes(*quota.memory_bytes);
  if (quota.jobs) message.set_jobs(*quota.jobs);
  if (quota.workers) message.set_workers(*quota.workers);
  if (quota.keys) message.set_keys(*quota.keys);
  if (quota.weight) message.set_weight(*quota.weight);
  if (quota.bandwidth_bytes) message.set_bandwidth_bytes(*quota.bandwidth_bytes);
  return Seal(TenantKey(tenant.name), message.SerializeAsString());
}

absl::StatusOr<Tenant> Records::ToTenant(std::string_view key, const std::string& value) const {
  const auto message = Parse<stored::StoredTenant>(Open(key, value));
  if (!message.ok()) return message.status();
  Tenant tenant;
  tenant.name = message->name();
  tenant.suspended = message->suspended();
  tenant.created_at = message->created_at_ns();
  tenant.encryption_required = message->encryption_required();
  if (message->has_memory_bytes()) tenant.quota.memory_bytes = message->memory_bytes();
  if (message->has_jobs()) tenant.quota.jobs = message->jobs();
  if (message->has_workers()) tenant.quota.workers = message->workers();
  if (message->has_keys()) tenant.quota.keys = message->keys();
  if (message->has_weight()) tenant.quota.weight = message->weight();
  if (message->has_bandwidth_bytes()) tenant.quota.bandwidth_bytes = message->bandwidth_bytes();
  return tenant;
}

std::string Records::OfToken(const Token& token) const {
  stored::StoredToken message;
  message.set_id(token.id);
  message.set_role(ToString(token.role));
  message.set_tenant(token.tenant);
  message.set_label(token.label);
  message.set_hash(token.hash);
  message.set_created_at_ns(token.created_at);
  message.set_expires_at_ns(token.expires_at);
  message.set_revoked_at_ns(token.revoked_at);
  message.set_created_by(token.created_by);
  message.set_key_id(token.key_id);
  return Seal(TokenKey(token), message.SerializeAsString());
}

absl::StatusOr<Token> Records::ToToken(std::string_view key, const std::string& value) const {
  const auto message = Parse<stored::StoredToken>(Open(key, value));
  if (!message.ok()) return message.status();
  const std::optional<Role> role = ParseRole(message->role());
  if (!role.has_value()) {
    return absl::FailedPreconditionError(fmt::format(
        "in etcd has the unknown role {}; probably a newer phubd has written it", message->role()));
  }
  return Token{.id = message->id(),
               .role = *role,
               .tenant = message->tenant(),
               .label = message->label(),
               .hash = message->hash(),
               .created_at = message->created_at_ns(),
               .expires_at = message->expires_at_ns(),
               .revoked_at = message->revoked_at_ns(),
               .created_by = message->created_by(),
               .key_id = message->key_id()};
}

std::string Records::OfHead(const HeadRecord& head) const {
  stored::Head message;
  message.set_sequence(head.sequence);
  message.set_chain(head.chain);
  return Seal(kHeadKey, message.SerializeAsString());
}

absl::StatusOr<HeadRecord> Records::ToHead(const std::string& value) const {
  const auto message = Parse<stored::Head>(Open(kHeadKey, value));
  if (!message.ok()) return message.status();
  return HeadRecord{message->sequence(), message->chain()};
}

std::string Records::OfEntry(const AuditEntry& entry, const std::string& change) const {
  return OfEntryAt(AuditKey(entry.sequence), entry, change);
}

std::string Records::OfEntryAt(std::string_view key, const AuditEntry& entry,
                               const std::string& change) const {
  stored::StoredAuditEntry message;
  message.set_sequence(entry.sequence);
  message.set_at_ns(entry.at);
  message.set_actor(entry.actor);
  message.set_peer(entry.peer);
  message.set_action(entry.action);
  message.set_subject(entry.subject);
  message.set_detail(entry.detail);
  message.set_outcome(entry.outcome);
  message.set_chain(entry.chain);
  message.set_change(change);
  return Seal(key, message.SerializeAsString());
}

absl::StatusOr<AuditEntry> Records::ToEntry(std::string_view key, const std::string& value,
                                            std::string* change) const {
  const auto message = Parse<stored::StoredAuditEntry>(Open(key, value));
  if (!message.ok()) return message.status();
  if (change != nullptr) *change = message->change();
  return AuditEntry{.sequence = message->sequence(),
                    .at = message->at_ns(),
                    .actor = message->actor(),
                    .peer = message->peer(),
                    .action = message->action(),
                    .subject = message->subject(),
                    .detail = message->detail(),
                    .outcome = message->outcome(),
                    .chain = message->chain()};
}

}  // namespace phub::server::etcd
