// The daemon's resources that each tenant and job has reserved. Admission reserves here before
// anything is allocated. When a job ends, in whatever way, everything that it reserved is returned.
//
// Owned by control; one thread at a time. Invariants:
//   - A tenant's usage is the sum of its accounts and of what former jobs have left in use. At
//     admission it is at most its quota.
//   - The daemon's usage is the sum over its tenants. That of accounts is at most its limit.
// If a quota is lowered below the usage, new reservations are refused and existing ones are kept.
//
// In a cluster (UseGrants), a quota applies to the sum of all daemons. Then a part of what a tenant
// uses here is charged to this daemon's grant as well, and a reservation must be within it. The
// grant is enlarged before (grants.h).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/tenant/grant_plan.h"
#include "server/tenant/tenant.h"

namespace phub::server {

inline constexpr const char kDefaultTenant[] = "default";

// One run of one job of one tenant. The incarnation distinguishes a new run from an old run with
// the same name that is still being torn down.
struct Account {
  std::string tenant;
  std::string job;
  Incarnation incarnation{};
  friend auto operator<=>(const Account&, const Account&) = default;
};

// What of an account is charged to this daemon's grant. The parts of a job at several daemons count
// once in the cluster.
struct Charges {
  bool job = true;
  bool workers = true;
  bool keys = true;
};

class Ledger {
 public:
  // The ledger starts with the default tenant, which has no quota.
  explicit Ledger(std::uint64_t memory_bytes_max);

  // Adds the tenant, or changes its quota and state from now on.
  void SetTenant(const Tenant& tenant);
  // FAILED_PRECONDITION names the jobs that it still has. OK if there is no such tenant.
  absl::Status RemoveTenant(const std::string& name);
  bool HasTenant(const std::string& tenant) const { return tenants_.contains(tenant); }
  bool IsSuspended(const std::string& tenant) const;
  bool RequiresEncryption(const std::string& tenant) const;

  // Opens an account for a job with that many workers. RESOURCE_EXHAUSTED names the limit and the
  // tenant's usage. REQUIRES: a known tenant, no such account.
  [[nodiscard]] absl::Status Open(const Account& account, std::uint32_t workers,
                                  Charges charges = {});
  // Adds to the account, or changes nothing: RESOURCE_EXHAUSTED says how many bytes are missing,
  // and how much the tenant's jobs hold. REQUIRES: an open account.
  [[nodiscard]] absl::Status Reserve(const Account& account, std::uint64_t bytes);
  // only_here: no other daemon has the keys, so they are charged whatever the account's Charges.
  [[nodiscard]] absl::Status AddKeys(const Account& account, std::uint64_t count,
                                     bool only_here = false);
  // Return a part of a reservation that could not be used.
  void Return(const Account& account, std::uint64_t bytes);
  void ReturnKeys(const Account& account, std::uint64_t count, bool only_here = false);
  // Closes the account and returns the bytes that it held; 0 if there is no such account.
  std::uint64_t Close(const Account& account);

  // Sets how much shared memory of its former jobs of this name the tenant's processes still use;
  // see jobs/left_memory.h. It counts against the limits, and cannot be refused.
  void SetLeft(const std::string& tenant, const std::string& job, std::uint64_t bytes);
  std::uint64_t LeftOf(const std::string& tenant) const;
  std::uint64_t left_bytes() const { return left_bytes_; }  // all tenants together
  // Whether a reservation of a new job fails now, and would not fail without such memory.
  bool OnlyLeftIsInTheWay(const std::string& tenant, std::uint64_t bytes) const;

  // Including what is left.
  std::uint64_t used_bytes() const { return used_bytes_ + left_bytes_; }
  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes(const Account& account) const;
  // An unknown tenant has no limits.
  Quota QuotaOf(const std::string& tenant) const;
  // Its memory includes what is left. An unknown tenant has no usage.
  Usage UsageOf(const std::string& tenant) const;
  // The most memory that the tenant's jobs may reserve together; 0 for an unknown tenant.
  std::uint64_t tenant_limit_bytes(const std::string& tenant) const;
  // From now on, limited quotas of a cluster are used within grants only.
  void UseGrants(const Clock& clock) { clock_ = &clock; }
  bool uses_grants() const { return clock_ != nullptr; }
  // While a daemon of the cluster wants to delete the tenant, it has no new jobs. Without effect
  // for an unknown tenant.
  void SetLeaving(const std::string& tenant, bool leaving);
  // Without effect for an unknown tenant.
  void SetGrant(const std::string& tenant, const Usage& grant);
  // After this time, what is free in grants cannot be used any more, and there are no new jobs:
  // other daemons may have deleted the tenant.
  void SetGrantsEnd(TimeNs end) { grants_end_ = end; }
  bool GrantCovers(const std::string& tenant, const Usage& more) const;
  struct GrantUse {
    Quota quota;
    Usage grant;
    Usage charged;  // more than the grant: quotas were lowered, or the daemon was cut off from etcd
    bool leaving = false;
  };
  GrantUse GrantUseOf(const std::string& tenant) const;  // empty if there is no such tenant
  std::vector<std::string> TenantsAboveGrants() const;
  std::vector<std::string> TenantsWithGrants() const;  // or with a charge

  // For the daemon's log: "acme 3.0 GiB, default 1.0 GiB".
  std::string DescribeHolders() const;

  // Aborts if A1 to A4 of docs/internals/invariants.md are broken.
  void CheckInvariants() const;

 private:
  struct Holder {
    Quota quota;
    bool suspended = false;
    bool leaving = false;
    bool encryption_required = false;
    Usage used;
    Usage grant;
    Usage charged;  // without memory, which counts wherever it is
  };
  struct Holding {
    std::uint64_t bytes = 0;
    std::uint32_t workers = 0;
    std::uint64_t keys = 0;
    std::uint64_t keys_charged = 0;  // to the grant
    Charges charges;
  };
  struct Room {
    std::uint64_t of_tenant = 0;
    std::uint64_t of_daemon = 0;
  };
  Usage ChargedTo(const std::string& tenant, const Holder& holder) const;
  absl::Status CheckPlace(const Account& account, const Holder& holder) const;
  absl::Status NotGranted(const Account& account, const Usage& more) const;
  std::string DescribeJobs(const std::string& tenant) const;
  std::string DescribeLeft(const std::string& tenant) const;
  Room RoomOf(const std::string& tenant, bool with_left) const;

  std::uint64_t limit_bytes_;
  const Clock* clock_ = nullptr;  // null: quotas are this daemon's own
  TimeNs grants_end_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::map<std::string, Holder> tenants_;
  std::map<Account, Holding> accounts_;
  std::uint64_t left_bytes_ = 0;
  std::map<std::string, std::map<std::string, std::uint64_t>> left_;  // [tenant][job], not 0
};

// "1.5 MiB": for messages.
std::string FormatBytes(std::uint64_t bytes);

}  // namespace phub::server
