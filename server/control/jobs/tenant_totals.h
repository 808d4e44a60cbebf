// How much work jobs have done, and those that were released, by tenant. Owned by Control; under
// control's lock.
#pragma once

#include <map>
#include <string>

#include "server/control/jobs/job.h"

namespace phub::server {

class TenantTotals {
 public:
  // What the job did so far; nothing once it was released.
  static WorkTotals TotalsOf(const Job& job);
  // Keeps what the job did, for itself and for its tenant. Before its shards are freed.
  void NoteTotals(Job& job);
  // Of jobs that were released. [tenant]
  const std::map<std::string, WorkTotals>& released() const { return released_; }

 private:
  std::map<std::string, WorkTotals> released_;
};

}  // namespace phub::server
