// Who holds how much of the daemon: admission reserves in it before anything is taken, and a job's
// end returns everything, however it ended.
//
// Owned by control; one thread at a time. Invariants: what a tenant uses is the sum of its accounts
// and, when it was admitted, at most its quota; what the daemon uses is the sum of its tenants and
// at most its limit. A quota that was lowered below what is used refuses what is new, and takes
// nothing away.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "server/tenant/tenant.h"

namespace phub::server {

inline constexpr const char kDefaultTenant[] = "default";

// One run of one job of one tenant. The incarnation keeps a new run apart from an old one of the
// same name that is still being torn down.
struct Account {
  std::string tenant;
  std::string job;
  Incarnation incarnation{};
  friend auto operator<=>(const Account&, const Account&) = default;
};

struct Usage {
  std::uint64_t memory_bytes = 0;
  std::uint64_t jobs = 0;
  std::uint64_t workers = 0;
  std::uint64_t keys = 0;
};

class Ledger {
 public:
  // The default tenant is there, and may use all of it.
  explicit Ledger(std::uint64_t memory_bytes_max);

  // Adds it, or changes what it may do from now on.
  void SetTenant(const Tenant& tenant);
  // FAILED_PRECONDITION names its jobs that are not gone yet. OK if it is not there.
  absl::Status RemoveTenant(const std::string& name);
  bool HasTenant(const std::string& tenant) const { return tenants_.contains(tenant); }
  bool IsSuspended(const std::string& tenant) const;
  bool RequiresEncryption(const std::string& tenant) const;

  // A new account, of a job of so many workers. RESOURCE_EXHAUSTED says which limit, and what the
  // tenant has. REQUIRES: a known tenant, no such account.
  [[nodiscard]] absl::Status Open(const Account& account, std::uint32_t workers);
  // Adds to the account, or changes nothing: RESOURCE_EXHAUSTED says how much is missing, to the
  // byte, and what the tenant's jobs hold. REQUIRES: an open account.
  [[nodiscard]] absl::Status Reserve(const Account& account, std::uint64_t bytes);
  [[nodiscard]] absl::Status AddKeys(const Account& account, std::uint64_t count);
  // Give back a part that was reserved and could not be used.
  void Return(const Account& account, std::uint64_t bytes);
  void ReturnKeys(const Account& account, std::uint64_t count);
  // Closes the account; returns the memory that it held. 0 if there is none.
  std::uint64_t Close(const Account& account);

  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes(const Account& account) const;
  // Of a tenant that is not there: nothing.
  Usage UsageOf(const std::string& tenant) const;
  // The most that the tenant's jobs may reserve together; 0 if it is not there.
  std::uint64_t tenant_limit_bytes(const std::string& tenant) const;
  // For the daemon's log: "acme 3.0 GiB, default 1.0 GiB".
  std::string DescribeHolders() const;

 private:
  struct Holder {
    Quota quota;
    bool suspended = false;
    bool encryption_required = false;
    Usage used;
  };
  struct Holding {
    std::uint64_t bytes = 0;
    std::uint32_t workers = 0;
    std::uint64_t keys = 0;
  };
  std::string DescribeJobs(const std::string& tenant) const;

  std::uint64_t limit_bytes_;
  std::uint64_t used_bytes_ = 0;
  std::map<std::string, Holder> tenants_;
  std::map<Account, Holding> accounts_;
};

// "1.5 MiB": for messages.
std::string FormatBytes(std::uint64_t bytes);

}  // namespace phub::server
