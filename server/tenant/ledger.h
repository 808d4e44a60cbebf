// Who holds how much of the daemon's memory: admission reserves in it before anything is taken, and
// a job's end returns everything, however it ended.
//
// Owned by control; one thread at a time. Invariants: what a tenant uses is the sum of its
// accounts and at most its quota; what the daemon uses is the sum of its tenants and at most its
// limit.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"

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

class Ledger {
 public:
  // The default tenant may use all of it.
  explicit Ledger(std::uint64_t memory_bytes_max);

  void AddTenant(const std::string& tenant, std::uint64_t memory_bytes_max);
  bool HasTenant(const std::string& tenant) const { return tenants_.contains(tenant); }

  // Adds to the account, or changes nothing: RESOURCE_EXHAUSTED says how much is missing.
  // REQUIRES: a known tenant.
  [[nodiscard]] absl::Status Reserve(const Account& account, std::uint64_t bytes);
  // Gives back a part that was reserved and could not be used.
  void Return(const Account& account, std::uint64_t bytes);
  // Closes the account; returns what it held.
  std::uint64_t Close(const Account& account);

  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t used_bytes(const Account& account) const;
  std::uint64_t tenant_used_bytes(const std::string& tenant) const;
  std::uint64_t tenant_limit_bytes(const std::string& tenant) const;

 private:
  struct Tenant {
    std::uint64_t limit_bytes = 0;
    std::uint64_t used_bytes = 0;
  };
  std::uint64_t limit_bytes_;
  std::uint64_t used_bytes_ = 0;
  std::map<std::string, Tenant> tenants_;
  std::map<Account, std::uint64_t> accounts_;
};

// "1.5 MiB": for messages.
std::string FormatBytes(std::uint64_t bytes);

}  // namespace phub::server
