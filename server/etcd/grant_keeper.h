// This daemon's grants of tenants' quotas (tenant/grants.h), as records with the lease of the
// daemon's place. One transaction changes a grant. It compares the tenant's record and the
// revisions of all grants of the tenant, so it is made only if the sum of the grants that it was
// decided on is still the present one. There is no record of the sum: etcd removes the grants of an
// ended lease by itself, and a sum would not follow.
//
//   a reservation is not covered ──> Ask ──> grants thread: read, PlanGrant, transaction ──> then
//                                                  │ the quota is short
//                                                  └──> `wanted` in this daemon's record; other
//                                                       daemons give back what they do not use
//
// If a daemon wants to delete a tenant (removal.h), this daemon's grant shrinks to what its jobs
// use, and its record says what that is. From then on, and until the removal has ended, the tenant
// has no new jobs here.
//
// The ledger's grant is never above the record: it is lowered before the transaction, and raised
// after it. Its free part ends with the lease (Ledger::SetGrantsEnd).
//
// Thread "grants"; it calls etcd without control's lock. What other threads call takes only this
// class's mutex, and never waits for etcd.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/work_thread.h"
#include "server/etcd/client.h"
#include "server/etcd/daemon_place.h"
#include "server/etcd/mirror.h"
#include "server/etcd/record.h"
#include "server/etcd/watch_loop.h"
#include "server/tenant/grants.h"
#include "server/tenant/ledger.h"

namespace phub::server::etcd {

class GrantKeeper final : public Grants, public GrantFollower {
 public:
  // They must outlive it.
  GrantKeeper(Client& client, const Records& records, WatchLoop& loop, PlaceOptions place)
      : client_(client),
        records_(records),
        loop_(loop),
        place_(client, records, std::move(place)) {}
  ~GrantKeeper() override;

  absl::Status Start(WithLedger with_ledger) override;
  // Before Start: takes the place, or renews its lease. Errors as of DaemonPlace::Take.
  absl::Status Claim();
  void Stop() override;
  void Ask(const std::string& tenant, const Usage& more, Then then) override;
  GrantsInCluster InCluster(const std::string& tenant) const override;
  std::string daemon_id() const override { return place_.self().id; }

  void GrantChanged(const std::string& key, const std::string& value) override;
  void QuotaChanged(const std::string& tenant) override;
  void RemovalChanged(const std::string& tenant, bool begins) override;

 private:
  struct Waiter {
    Usage more;
    TimeNs deadline = 0;
    Then then;
  };
  using Waiters = std::list<std::shared_ptr<Waiter>>;
  // What etcd has of a tenant's quotas, at one revision.
  struct Shares {
    std::int64_t revision = 0;
    std::int64_t tenant_revision = 0;  // 0: there is no such tenant
    std::string removal;               // its id; empty: nobody wants to delete the tenant
    std::int64_t removal_revision = 0;
    Quota quota;
    Usage others;
    bool others_want = false;
    GrantRecord own;
    bool has_own = false;
    std::vector<std::pair<std::string, Usage>> daemons;
  };

  void Tick();
  void KeepPlace();
  void TakePlace();
  void OpenPlace();
  void QueueRemovals();
  void Queue(const std::string& tenant);
  void Settle(const std::string& tenant);
  bool NeedsSettling(const std::string& tenant);
  absl::Status CheckReady() const;
  absl::StatusOr<Shares> Read(const std::string& tenant);
  absl::Status AddGrant(const pb::KeyValue& pair, const std::string& tenant, Shares& shares) const;
  // used: what the tenant's jobs use here, if it is being removed.
  GrantPlan Plan(const std::string& tenant, const Shares& shares, const Waiters& waiters,
                 Usage& used);
  // False: something has changed since Read.
  absl::StatusOr<bool> Write(const GrantRecord& grant, const Shares& shares);
  void Finish(const std::string& tenant, const Shares& shares, const GrantPlan& plan,
              const Waiters& waiters);
  void Answer(const std::string& tenant, const std::shared_ptr<Waiter>& waiter,
              const absl::Status& status);
  void RefuseAll(const std::string& tenant, const absl::Status& status);
  Waiters WaitersOf(const std::string& tenant) const;
  std::string Full(std::string_view key) const { return place_.prefix() + std::string(key); }

  Client& client_;
  const Records& records_;
  WatchLoop& loop_;
  const SystemClock clock_;
  DaemonPlace place_;                        // grants thread, and Start and Stop
  absl::Status place_fault_;                 // likewise
  TimeNs kept_at_ = 0;                       // likewise
  bool opened_ = false;                      // likewise: since the last Take
  std::map<std::string, TimeNs> wanted_at_;  // grants thread: when `wanted` was set
  std::set<std::string> leaving_;            // grants thread: as the ledger knows it
  WithLedger with_ledger_;
  std::unique_ptr<WorkThread> thread_;
  mutable std::mutex mutex_;
  bool running_ = false;                    // this and the rest: under mutex_
  std::map<std::string, Waiters> waiting_;  // [tenant]
  std::set<std::string> queued_;            // tenants that the thread will settle
  std::set<std::string> removals_;          // tenants that a daemon wants to delete
  std::map<std::string, std::map<std::string, GrantRecord>> known_;  // [tenant][daemon]
};

}  // namespace phub::server::etcd
