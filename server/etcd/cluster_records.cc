// Records of daemons, of what they hold, and of copied stores, see record.h.
#include "phub/store/records.pb.h"
#include "server/etcd/record.h"
#include "server/etcd/record_parse.h"

namespace phub::server::etcd {

namespace stored = ::phub::store::v1;

std::string Records::OfDaemon(const DaemonRecord& daemon) const {
  stored::StoredDaemon message;
  message.set_id(daemon.id);
  message.set_instance(daemon.instance);
  message.set_host(daemon.host);
  message.set_endpoint(daemon.endpoint);
  message.set_started_at_ns(daemon.started_at);
  return Seal(DaemonKey(daemon.id), message.SerializeAsString());
}

absl::StatusOr<DaemonRecord> Records::ToDaemon(std::string_view key,
                                               const std::string& value) const {
  const auto message = Parse<stored::StoredDaemon>(Open(key, value));
  if (!message.ok()) return message.status();
  return DaemonRecord{.id = message->id(),
                      .instance = message->instance(),
                      .host = message->host(),
                      .endpoint = message->endpoint(),
                      .started_at = message->started_at_ns()};
}

std::string Records::OfGrant(const GrantRecord& grant) const {
  stored::StoredGrant message;
  message.set_tenant(grant.tenant);
  message.set_daemon(grant.daemon);
  message.set_jobs(grant.amount.jobs);
  message.set_workers(grant.amount.workers);
  message.set_keys(grant.amount.keys);
  message.set_memory_bytes(grant.amount.memory_bytes);
  message.set_wanted(grant.wanted);
  message.set_removal(grant.removal);
  message.set_used_jobs(grant.used.jobs);
  message.set_used_workers(grant.used.workers);
  message.set_used_keys(grant.used.keys);
  message.set_used_memory_bytes(grant.used.memory_bytes);
  return Seal(GrantKey(grant.tenant, grant.daemon), message.SerializeAsString());
}

absl::StatusOr<GrantRecord> Records::ToGrant(std::string_view key, const std::string& value) const {
  const auto message = Parse<stored::StoredGrant>(Open(key, value));
  if (!message.ok()) return message.status();
  return GrantRecord{.tenant = message->tenant(),
                     .daemon = message->daemon(),
                     .amount = {.memory_bytes = message->memory_bytes(),
                                .jobs = message->jobs(),
                                .workers = message->workers(),
                                .keys = message->keys()},
                     .wanted = message->wanted(),
                     .removal = message->removal(),
                     .used = {.memory_bytes = message->used_memory_bytes(),
                              .jobs = message->used_jobs(),
                              .workers = message->used_workers(),
                              .keys = message->used_keys()}};
}

std::string Records::OfRemoval(const RemovalRecord& removal) const {
  stored::StoredRemoval message;
  message.set_tenant(removal.tenant);
  message.set_id(removal.id);
  message.set_daemon(removal.daemon);
  return Seal(RemovalKey(removal.tenant), message.SerializeAsString());
}

absl::StatusOr<RemovalRecord> Records::ToRemoval(std::string_view key,
                                                 const std::string& value) const {
  const auto message = Parse<stored::StoredRemoval>(Open(key, value));
  if (!message.ok()) return message.status();
  return RemovalRecord{message->tenant(), message->id(), message->daemon()};
}

std::string Records::OfLog(const AuditLog& log, std::int64_t entries) const {
  stored::StoredLog message;
  message.set_id(log.id);
  message.set_key_id(log.key_id);
  message.set_source(log.source);
  message.set_closed_at_ns(log.closed_at);
  message.set_entries(entries);
  return Seal(LogKey(log.id), message.SerializeAsString());
}

absl::StatusOr<AuditLog> Records::ToLog(std::string_view key, const std::string& value,
                                        std::int64_t& entries) const {
  const auto message = Parse<stored::StoredLog>(Open(key, value));
  if (!message.ok()) return message.status();
  entries = message->entries();
  return AuditLog{.id = message->id(),
                  .key_id = message->key_id(),
                  .source = message->source(),
                  .closed_at = message->closed_at_ns()};
}

std::string Records::OfFreeze(const FreezeRecord& freeze) const {
  stored::StoredFreeze message;
  message.set_why(freeze.why);
  message.set_host(freeze.host);
  message.set_process(freeze.process);
  message.set_at_ns(freeze.at);
  return Seal(kFrozenKey, message.SerializeAsString());
}

absl::StatusOr<FreezeRecord> Records::ToFreeze(const std::string& value) const {
  const auto message = Parse<stored::StoredFreeze>(Open(kFrozenKey, value));
  if (!message.ok()) return message.status();
  return FreezeRecord{.why = message->why(),
                      .host = message->host(),
                      .process = message->process(),
                      .at = message->at_ns()};
}

}  // namespace phub::server::etcd
