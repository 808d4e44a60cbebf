// This daemon's grants of the quotas of a cluster: how they are enlarged and given back. A control
// store that several daemons share implements it (server/etcd/grant_keeper.h).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/tenant/grant_plan.h"

namespace phub::server {

class Ledger;

// What daemons hold of a tenant's quotas, as this daemon knows it.
struct GrantsInCluster {
  Usage sum;
  std::vector<std::pair<std::string, Usage>> daemons;  // by id
};

class Grants {
 public:
  virtual ~Grants() = default;

  // Calls the function with control's lock held.
  using WithLedger = std::function<void(const std::function<void(Ledger&)>&)>;
  // Takes this daemon's place in the cluster. ALREADY_EXISTS names another daemon that has it.
  virtual absl::Status Start(WithLedger with_ledger) = 0;
  // Gives everything back. Idempotent.
  virtual void Stop() = 0;

  // Asks for a grant that covers `more` besides what the tenant's jobs use. Returns at once; `then`
  // is called later, with control's lock held, or before the call returns. OK: the grant covered it
  // a moment ago. RESOURCE_EXHAUSTED names the quota and the daemons that hold it; UNAVAILABLE:
  // etcd does not answer. REQUIRES: control's lock.
  using Then = std::function<void(const absl::Status&)>;
  virtual void Ask(const std::string& tenant, const Usage& more, Then then) = 0;
  // Any thread.
  virtual GrantsInCluster InCluster(const std::string& tenant) const = 0;
  virtual std::string daemon_id() const = 0;
};

}  // namespace phub::server
