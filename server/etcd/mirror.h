// What a daemon keeps in memory of the control store in etcd. Changes arrive from the watch and
// from this daemon's own transactions, in any order; the newest revision of a key counts. A
// record that cannot be read never permits anything: its token is removed, its tenant is suspended.
// Any thread. The follower is called under the mirror's lock.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/etcd/record.h"
#include "server/tenant/control_store.h"

namespace phub::server::etcd {

struct Item {
  std::string key;  // without the prefix
  std::int64_t revision = 0;
  std::string value;
};

// Is called under the mirror's lock when records change. Must not call the mirror.
class GrantFollower {
 public:
  virtual ~GrantFollower() = default;
  // A grant (/grants/TENANT/ID) or a tenant. Empty value: it is removed.
  virtual void GrantChanged(const std::string& key, const std::string& value) = 0;
  virtual void QuotaChanged(const std::string& tenant) = 0;
  // Whether a daemon wants to delete the tenant.
  virtual void RemovalChanged(const std::string& tenant, bool begins) = 0;
};

// Likewise, for the view and the daemons at its places. Empty value: the record is removed.
class MemberFollower {
 public:
  virtual ~MemberFollower() = default;
  virtual void RecordChanged(const std::string& key, std::int64_t revision,
                             const std::string& value) = 0;
};

class Mirror {
 public:
  explicit Mirror(const Records& records) : records_(records) {}

  // Reports changes from now on. Null: no more.
  void SetFollower(StoreFollower* follower);
  // Before the first change. It must outlive the mirror's last call.
  void SetGrantFollower(GrantFollower& follower) { grant_follower_ = &follower; }
  void SetMemberFollower(MemberFollower& follower) { member_follower_ = &follower; }

  // The whole contents at that revision. What is not in the list is gone, except for what this
  // daemon has written since then. went_back: even that, since etcd has lost changes.
  void Replace(const std::vector<Item>& items, std::int64_t revision, bool went_back);
  void Put(const Item& item);
  void Remove(const std::string& key, std::int64_t revision);
  void RemoveTokensOf(const std::string& tenant, std::int64_t revision);
  // The watch has delivered everything up to this revision.
  void AdvanceTo(std::int64_t revision);

  std::int64_t revision() const;
  std::vector<Tenant> Tenants() const;  // by name
  std::vector<Token> Tokens() const;    // oldest first
  // The record's revision; 0 if there is no such record.
  std::int64_t RevisionOf(const std::string& key) const;
  // OK, or why the record cannot be read.
  absl::Status FaultOf(const std::string& key) const;
  // NOT_FOUND, or why the record cannot be read.
  absl::StatusOr<Tenant> FindTenant(const std::string& key) const;
  absl::StatusOr<Token> FindToken(const std::string& key) const;
  // Reports a tenant or token again, if it exists.
  void Repeat(const std::string& key);
  // The end of the audit log, and its revision; sequence 0: it is empty.
  absl::StatusOr<HeadRecord> Head(std::int64_t& revision) const;

 private:
  struct Seen {
    std::int64_t revision = 0;
    bool removed = false;  // kept until the watch has passed it
    absl::Status fault = {};
  };
  template <typename Record>
  absl::StatusOr<Record> FindLocked(const std::map<std::string, Record>& records,
                                    const std::string& key) const;
  void PutLocked(const Item& item);
  void RemoveLocked(const std::string& key, std::int64_t revision);
  void PutTenant(const Item& item, Seen& seen);
  void PutToken(const Item& item, Seen& seen);
  void NoteFault(const std::string& key, Seen& seen, const absl::Status& status);

  const Records& records_;
  GrantFollower* grant_follower_ = nullptr;    // null: nobody asks for grants
  MemberFollower* member_follower_ = nullptr;  // null: nobody asks for the view
  mutable std::mutex mutex_;
  StoreFollower* follower_ = nullptr;      // this and the rest: under mutex_
  std::map<std::string, Seen> seen_;       // [key]
  std::map<std::string, Tenant> tenants_;  // [key]
  std::map<std::string, Token> tokens_;    // [key]
  HeadRecord head_;
  std::int64_t revision_ = 0;
};

}  // namespace phub::server::etcd
