#include "server/etcd/etcd_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/tls/certificate.h"
#include "server/etcd/cluster.h"
#include "server/etcd/daemon_id.h"
#include "server/etcd/token_key_file.h"
#include "server/tenant/audit_chain.h"
#include "server/tenant/token.h"
#include "server/tenant/token_key.h"

namespace phub::server::etcd {
namespace {

constexpr DurationNs kStartRetry = 500 * kMillisecond;
constexpr DurationNs kStartLogEvery = 10 * kSecond;
constexpr std::size_t kChangeIdBytes = 16;
constexpr std::size_t kInstanceBytes = 16;
// Another daemon may have made a change first; each time this one reads what has changed.
constexpr int kCommitsMax = 20;

absl::Status Unchanged(const absl::Status& status) {
  return absl::FailedPreconditionError(
      fmt::format("nothing was changed: {}. Reads and running jobs go on", MessageOf(status)));
}

}  // namespace

EtcdStore::EtcdStore(const StoreOptions& options, Random& random, std::unique_ptr<Client> client,
                     std::string token_key, std::string cluster, std::int64_t cluster_revision)
    : prefix_(options.prefix),
      random_(random),
      token_key_(std::move(token_key)),
      token_key_path_(options.token_key_path),
      records_(token_key_, std::move(cluster)),
      cluster_revision_(cluster_revision),
      client_(std::move(client)),
      members_(records_, options.place.group.empty() ? "" : view::ToString(options.place),
               {.commit =
                    [this](const std::string& value, std::int64_t at, const AuditNote& note) {
                      Change change;
                      change.writes = {{std::string(kViewKey), value, at, "the view"}};
                      return Commit(change, note).status();
                    },
                .claim = [this] { return grants_.Claim(); },
                .read = [this] { return ReadMembers(); }}),
      mirror_(records_),
      loop_(*client_, mirror_, prefix_, options.stale_max),
      grants_(*client_, records_, loop_, MakePlace(options, cluster_revision, random)),
      local_(records_, options.token_key_path, options.daemon_id) {
  mirror_.SetGrantFollower(grants_);
  mirror_.SetMemberFollower(members_);
}

// This daemon's place in the cluster.
PlaceOptions EtcdStore::MakePlace(const StoreOptions& options, std::int64_t cluster_revision,
                                  Random& random) {
  return {.prefix = options.prefix,
          .cluster_revision = cluster_revision,
          .self = {.id = options.daemon_id,
                   .instance = DrawBytes(random, kInstanceBytes),
                   .host = HostName(),
                   .endpoint = options.endpoint,
                   .started_at = WallNow()},
          .grace = options.quota_grace,
          .place = options.place};
}

absl::Status CheckFiles(const StoreOptions& options) {
  const ClientOptions& client = options.client;
  if (!client.certificate.empty()) {
    const absl::Status tls = CheckTlsFiles({client.certificate, client.key, client.ca});
    if (!tls.ok()) return tls;
  } else if (!client.ca.empty()) {
    if (absl::Status authority = CheckAuthorityFile(client.ca); !authority.ok()) return authority;
  }
  const absl::Status key = ReadTokenKeyFile(options.token_key_path).status();
  return absl::IsNotFound(key) ? absl::OkStatus() : key;
}

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(const StoreOptions& options,
                                                           Random& random,
                                                           const std::function<bool()>& stopped) {
  if (absl::Status status = CheckFiles(options); !status.ok()) return status;
  auto client = std::make_unique<Client>(options.client);
  const SystemClock clock;
  TimeNs logged_at = 0;
  for (;;) {
    absl::StatusOr<Cluster> cluster =
        FindCluster(*client, options.prefix, options.token_key_path, random);
    absl::Status status = cluster.status();
    if (status.ok()) {
      std::int64_t revision = 0;
      const auto items = ReadAll(*client, options.prefix, revision);
      status = items.status();
      StoreOptions named = options;
      if (status.ok() && named.daemon_id.empty()) {
        auto id = FindDaemonId(options.token_key_path, random);
        if (!id.ok()) return id.status();
        named.daemon_id = *std::move(id);
      }
      if (status.ok()) {
        std::unique_ptr<EtcdStore> store(new EtcdStore(
            named, random, std::move(client), cluster->token_key, cluster->id, cluster->revision));
        store->mirror_.Replace(*items, revision, false);
        return store;
      }
    }
    if (!absl::IsUnavailable(status)) return status;
    if (const TimeNs now = clock.Now(); logged_at == 0 || now - logged_at >= kStartLogEvery) {
      logged_at = now;
      LogError("event=waiting_for_control_store error=\"{}\" effect=\"phubd is not ready\"",
               MessageOf(status));
    }
    if (stopped()) return absl::CancelledError("phubd was stopped while it waited for etcd");
    std::this_thread::sleep_for(std::chrono::nanoseconds(kStartRetry));
  }
}

absl::StatusOr<std::string> EtcdStore::ReadOtherKey(const std::string& key_id) const {
  return ReadOtherTokenKey(token_key_path_, key_id);
}

absl::Status EtcdStore::Follow(StoreFollower& follower) {
  mirror_.SetFollower(&follower);
  return loop_.Start();
}

void EtcdStore::StopFollowing() {
  grants_.Stop();
  loop_.Stop();
  mirror_.SetFollower(nullptr);
}

pb::TxnRequest EtcdStore::MakeTransaction(const Change& change, std::int64_t head_revision,
                                          const AuditEntry& entry, const std::string& id) const {
  pb::TxnRequest request;
  *request.add_compare() = HasRevision(Full(kClusterKey), cluster_revision_);
  *request.add_compare() = HasRevision(Full(kFrozenKey), 0);
  *request.add_compare() = HasRevision(Full(kHeadKey), head_revision);
  for (const Write& write : change.writes) {
    *request.add_compare() = HasRevision(Full(write.key), write.revision);
    if (!write.value.empty()) {
      *request.add_success() = Put(Full(write.key), write.value);
    } else {
      request.add_success()->mutable_request_delete_range()->set_key(Full(write.key));
    }
  }
  if (!change.tenant.empty()) {
    pb::Compare& exists = *request.add_compare();
    exists = HasRevision(Full(TenantKey(change.tenant)), 0);
    exists.set_result(pb::Compare::NOT_EQUAL);
  }
  if (!change.no_tokens.empty()) {
    pb::DeleteRangeRequest& tokens = *request.add_success()->mutable_request_delete_range();
    tokens.set_key(Full(TokensOfTenant(change.no_tokens)));
    tokens.set_range_end(EndOf(tokens.key()));
  }
  if (change.removal != nullptr) change.removal->AddTo(request);
  *request.add_success() = Put(Full(AuditKey(entry.sequence)), records_.OfEntry(entry, id));
  *request.add_success() = Put(Full(kHeadKey), records_.OfHead({entry.sequence, entry.chain}));
  // Explain() reads these in this order.
  *request.add_failure() = Get(Full(AuditKey(entry.sequence)));
  *request.add_failure() = Get(Full(kClusterKey));
  *request.add_failure() = Get(Full(kFrozenKey));
  *request.add_failure() = Get(Full(kHeadKey));
  if (!change.tenant.empty()) *request.add_failure() = Get(Full(TenantKey(change.tenant)));
  for (const Write& write : change.writes) *request.add_failure() = Get(Full(write.key));
  return request;
}

absl::Status EtcdStore::Explain(const Change& change, const pb::TxnResponse& response,
                                const std::string& id, std::int64_t& made_at) {
  const auto found = [&](int place) -> const pb::KeyValue* {
    if (place >= response.responses_size()) return nullptr;
    const pb::RangeResponse& range = response.responses(place).response_range();
    return range.kvs().empty() ? nullptr : &range.kvs(0);
  };
  if (const pb::KeyValue* const entry = found(0); entry != nullptr) {
    std::string made_by;
    const auto read =
        records_.ToEntry(entry->key().substr(prefix_.size()), entry->value(), &made_by);
    if (read.ok() && made_by == id) {
      made_at = entry->mod_revision();
      return absl::OkStatus();
    }
  }
  const pb::KeyValue* const cluster = found(1);
  if (cluster == nullptr || cluster->mod_revision() != cluster_revision_) {
    return absl::FailedPreconditionError(fmt::format(
        "etcd has another cluster below {} than when phubd started; restart phubd", prefix_));
  }
  if (const pb::KeyValue* const frozen = found(2); frozen != nullptr) {
    const auto freeze = records_.ToFreeze(frozen->value());
    return absl::FailedPreconditionError(
        fmt::format("nothing was changed: the control store is frozen{}",
                    freeze.ok() ? fmt::format(", because {} (process {} on host {})", freeze->why,
                                              freeze->process, freeze->host)
                                : ": " + std::string(MessageOf(freeze.status()))));
  }
  // What another daemon has changed is known from now on.
  const std::int64_t now = response.header().revision();
  const auto learn = [&](const std::string& key, const pb::KeyValue* pair) {
    if (pair != nullptr) {
      mirror_.Put({key, pair->mod_revision(), pair->value()});
    } else if (mirror_.RevisionOf(key) != 0) {
      mirror_.Remove(key, now);
    }
  };
  int place = 3;
  learn(std::string(kHeadKey), found(place++));
  if (!change.tenant.empty()) {
    const pb::KeyValue* const tenant = found(place++);
    learn(TenantKey(change.tenant), tenant);
    if (tenant == nullptr) {
      return absl::NotFoundError(fmt::format("there is no tenant {} any more", change.tenant));
    }
  }
  for (const Write& write : change.writes) {
    const pb::KeyValue* const record = found(place++);
    learn(write.key, record);
    if ((record == nullptr ? 0 : record->mod_revision()) != write.revision) {
      return absl::AbortedError(fmt::format(
          "{} was changed by another daemon meanwhile; check it and try again", write.what));
    }
  }
  made_at = 0;
  return absl::OkStatus();
}

void EtcdStore::Remember(const Change& change, const AuditEntry& entry, std::int64_t revision) {
  for (const Write& write : change.writes) {
    if (write.value.empty()) {
      mirror_.Remove(write.key, revision);
    } else {
      mirror_.Put({write.key, revision, write.value});
    }
  }
  if (!change.no_tokens.empty()) mirror_.RemoveTokensOf(change.no_tokens, revision);
  mirror_.Put({std::string(kHeadKey), revision, records_.OfHead({entry.sequence, entry.chain})});
}

// Before a transaction: what a status of etcd means for the caller.
absl::Status EtcdStore::Refused(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  loop_.NoteUnreachable(status);
  return Unchanged(status);
}

absl::StatusOr<std::int64_t> EtcdStore::Commit(const Change& change, const AuditNote& note) {
  // Waiting for etcd once per outage is enough.
  if (absl::Status status = loop_.reachable(); !status.ok()) return Unchanged(status);
  const std::string id = DrawBytes(random_, kChangeIdBytes);
  for (int i = 0; i < kCommitsMax; ++i) {
    if (change.removal != nullptr) {
      if (absl::Status status = change.removal->Await(); !status.ok()) return Refused(status);
    }
    std::int64_t head_revision = 0;
    const auto head = mirror_.Head(head_revision);
    if (!head.ok()) return head.status();
    const AuditEntry entry = NextEntry(token_key_, head->sequence, head->chain, note);
    const auto answer = client_->Txn(MakeTransaction(change, head_revision, entry, id));
    if (absl::IsUnavailable(answer.status())) {
      loop_.NoteUnreachable(answer.status());
      return absl::FailedPreconditionError(
          fmt::format("{}; the change was probably not made, check it when etcd is back",
                      MessageOf(answer.status())));
    }
    if (!answer.ok()) return answer.status();
    std::int64_t made_at = answer->header().revision();
    if (!answer->succeeded()) {
      if (absl::Status why = Explain(change, *answer, id, made_at); !why.ok()) return why;
    }
    if (made_at == 0) continue;  // only the head was another one
    Remember(change, entry, made_at);
    return made_at;
  }
  return absl::AbortedError("other daemons change the control store all the time; try again");
}

absl::Status EtcdStore::CreateTenant(Tenant& tenant, const AuditNote& note) {
  return UpdateTenant(tenant, note);  // with revision 0
}

absl::Status EtcdStore::UpdateTenant(Tenant& tenant, const AuditNote& note) {
  const std::string key = TenantKey(tenant.name);
  if (absl::Status fault = mirror_.FaultOf(key); !fault.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("tenant {} cannot be changed: {}. Restore the record, or delete the tenant",
                    tenant.name, MessageOf(fault)));
  }
  Change change;
  change.writes = {{key, records_.OfTenant(tenant), tenant.revision, "tenant " + tenant.name}};
  const auto revision = Commit(change, note);
  if (revision.ok()) tenant.revision = *revision;
  return revision.status();
}

absl::Status EtcdStore::DeleteTenant(const Tenant& tenant, const AuditNote& note) {
  if (absl::Status status = loop_.reachable(); !status.ok()) return Unchanged(status);
  Removal removal(*client_, records_, prefix_, cluster_revision_,
                  {tenant.name, DrawBytes(random_, kChangeIdBytes), grants_.daemon_id()});
  if (absl::Status begun = removal.Begin(); !begun.ok()) return Refused(begun);
  Change change;
  change.writes = {{TenantKey(tenant.name), "", tenant.revision, "tenant " + tenant.name}};
  change.no_tokens = tenant.name;
  change.removal = &removal;
  return Commit(change, note).status();
}

absl::Status EtcdStore::AddToken(Token& token, const AuditNote& note) {
  Change change;
  change.writes = {{TokenKey(token), records_.OfToken(token), 0, "token " + token.id}};
  change.tenant = token.tenant;
  const auto revision = Commit(change, note);
  if (revision.ok()) token.revision = *revision;
  return revision.status();
}

absl::Status EtcdStore::RotateToken(Token& token, Token& old, const AuditNote& note) {
  Change change;
  change.writes = {{TokenKey(token), records_.OfToken(token), 0, "token " + token.id},
                   {TokenKey(old), records_.OfToken(old), old.revision, "token " + old.id}};
  change.tenant = token.tenant;
  const auto revision = Commit(change, note);
  if (revision.ok()) token.revision = old.revision = *revision;
  return revision.status();
}

absl::Status EtcdStore::RevokeToken(Token& token, const AuditNote& note) {
  Change change;
  change.writes = {{TokenKey(token), records_.OfToken(token), token.revision, "token " + token.id}};
  const auto revision = Commit(change, note);
  if (revision.ok()) token.revision = *revision;
  return revision.status();
}

absl::StatusOr<std::vector<Item>> EtcdStore::ReadMembers() {
  pb::TxnRequest request;
  for (const std::string_view keys : {kViewKey, kPlaceKeys, kEndpointKeys}) {
    pb::RequestOp& operation = *request.add_success();
    operation = Get(Full(keys));
    if (keys != kViewKey) operation.mutable_request_range()->set_range_end(EndOf(Full(keys)));
  }
  const auto answer = client_->Txn(request);
  if (!answer.ok()) return answer.status();
  std::vector<Item> items;
  for (const pb::ResponseOp& response : answer->responses()) {
    for (const pb::KeyValue& pair : response.response_range().kvs())
      items.push_back({pair.key().substr(prefix_.size()), pair.mod_revision(), pair.value()});
  }
  return items;
}

absl::Status EtcdStore::Audit(const AuditNote& note) { return Commit({}, note).status(); }

}  // namespace phub::server::etcd
