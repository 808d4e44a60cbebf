// A store that daemons share, without etcd: what tests of TenantAdmin need.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tenant/control_store.h"
#include "server/tenant/local_changes.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// A host's disk, which outlives daemons.
class Disk : public LocalChangeFile {
 public:
  absl::StatusOr<std::vector<LocalChange>> Read() override {
    if (!fault.ok()) return fault;
    return contents;
  }
  absl::Status Write(const std::vector<LocalChange>& changes) override {
    if (fault.ok()) contents = changes;
    return fault;
  }
  const std::string& path() const override { return name; }
  const std::string name = "/disk/local";
  std::vector<LocalChange> contents;
  absl::Status fault;
};

// etcd, which outlives daemons, too. Another daemon changes it by Change and Remove.
struct Cluster {
  std::map<std::string, Tenant> tenants;
  std::map<std::string, Token> tokens;
  std::vector<AuditNote> log;
  std::int64_t revision = 0;
  absl::Status reachable;
  absl::Status frozen;            // answers, but refuses every change
  std::set<std::string> damaged;  // these records cannot be read
  StoreFollower* follower = nullptr;

  void Change(Tenant tenant) {
    tenant.revision = ++revision;
    tenants[tenant.name] = tenant;
    if (reachable.ok() && follower != nullptr) follower->TenantChanged(tenant);
  }
  void Change(Token token) {
    token.revision = ++revision;
    tokens[token.id] = token;
    if (reachable.ok() && follower != nullptr) follower->TokenChanged(token);
  }
};

class SharedStore : public ControlStore {
 public:
  SharedStore(Cluster& cluster, Disk& disk) : cluster_(cluster), disk_(disk) {}

  absl::StatusOr<std::vector<Tenant>> Tenants() override {
    std::vector<Tenant> list;
    for (const auto& [name, tenant] : cluster_.tenants) list.push_back(tenant);
    return list;
  }
  absl::StatusOr<std::vector<Token>> Tokens() override {
    std::vector<Token> list;
    for (const auto& [id, token] : cluster_.tokens) list.push_back(token);
    return list;
  }
  absl::Status CreateTenant(Tenant& tenant, const AuditNote& note) override {
    return UpdateTenant(tenant, note);
  }
  absl::Status UpdateTenant(Tenant& tenant, const AuditNote& note) override {
    const auto known = cluster_.tenants.find(tenant.name);
    const std::int64_t now = known == cluster_.tenants.end() ? 0 : known->second.revision;
    if (absl::Status may = May(tenant.revision, now, note); !may.ok()) return may;
    cluster_.Change(tenant);
    tenant.revision = cluster_.revision;
    return absl::OkStatus();
  }
  absl::Status DeleteTenant(const Tenant& tenant, const AuditNote& note) override {
    if (absl::Status may = May(0, 0, note); !may.ok()) return may;
    cluster_.tenants.erase(tenant.name);
    if (cluster_.follower != nullptr) cluster_.follower->TenantRemoved(tenant.name);
    return absl::OkStatus();
  }
  absl::Status AddToken(Token& token, const AuditNote& note) override {
    return RevokeToken(token, note);
  }
  absl::Status RotateToken(Token& /*token*/, Token& /*old*/, const AuditNote& note) override {
    return May(0, 0, note);
  }
  absl::Status RevokeToken(Token& token, const AuditNote& note) override {
    const auto known = cluster_.tokens.find(token.id);
    const std::int64_t now = known == cluster_.tokens.end() ? 0 : known->second.revision;
    if (absl::Status may = May(token.revision, now, note); !may.ok()) return may;
    cluster_.Change(token);
    token.revision = cluster_.revision;
    return absl::OkStatus();
  }
  absl::Status Audit(const AuditNote& note) override { return May(0, 0, note); }

  absl::StatusOr<std::vector<AuditEntry>> ReadAudit(std::int64_t, std::int64_t) override {
    return std::vector<AuditEntry>();
  }
  absl::StatusOr<std::int64_t> LastAuditSequence() override { return 0; }
  absl::Status VerifyAudit() override { return absl::OkStatus(); }
  DiskSpace Space() const override { return {}; }
  const std::string& hash_key() const override { return key_; }
  absl::StatusOr<std::string> ReadOtherKey(const std::string&) const override { return key_; }
  bool is_shared() const override { return true; }
  absl::Status Follow(StoreFollower& follower) override {
    cluster_.follower = &follower;
    return absl::OkStatus();
  }
  void StopFollowing() override { cluster_.follower = nullptr; }
  absl::Status Reachable() const override { return cluster_.reachable; }
  LocalChangeFile* local_changes() override { return &disk_; }
  absl::StatusOr<Tenant> FindTenant(const std::string& name) override {
    if (cluster_.damaged.contains(name)) return absl::DataLossError("it is damaged");
    const auto known = cluster_.tenants.find(name);
    if (known == cluster_.tenants.end()) return absl::NotFoundError("none");
    return known->second;
  }
  absl::StatusOr<Token> FindToken(const std::string& tenant, const std::string& id) override {
    const auto known = cluster_.tokens.find(id);
    if (known == cluster_.tokens.end() || known->second.tenant != tenant)
      return absl::NotFoundError("none");
    return known->second;
  }
  void RepeatTenant(const std::string& name) override {
    cluster_.follower->TenantChanged(cluster_.tenants.at(name));
  }
  void RepeatToken(const std::string& /*tenant*/, const std::string& id) override {
    cluster_.follower->TokenChanged(cluster_.tokens.at(id));
  }

 private:
  absl::Status May(std::int64_t decided_on, std::int64_t now, const AuditNote& note) {
    if (!cluster_.reachable.ok())
      return absl::FailedPreconditionError("nothing was changed: etcd does not answer");
    if (!cluster_.frozen.ok()) return cluster_.frozen;
    if (decided_on != now) return absl::AbortedError("another daemon has changed it");
    cluster_.log.push_back(note);
    return absl::OkStatus();
  }

  Cluster& cluster_;
  Disk& disk_;
  const std::string key_ = std::string(32, 'k');
};

}  // namespace phub::server
