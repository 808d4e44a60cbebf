// Counts the work that jobs have done. Totals of released jobs are kept by tenant. Owned by
// Control; under control's lock.
#pragma once

#include <map>
#include <string>

#include "server/control/jobs/job.h"

namespace phub::server {

class TenantTotals {
 public:
  // The work of the job so far; zero after its release.
  static WorkTotals TotalsOf(const Job& job);
  // Adds the work of the job to its record and to its tenant. Call it before its shards are freed.
  void NoteTotals(Job& job);
  // Totals of released jobs. [tenant]
  const std::map<std::string, WorkTotals>& released() const { return released_; }

 private:
  std::map<std::string, WorkTotals> released_;
};

}  // namespace phub::server
