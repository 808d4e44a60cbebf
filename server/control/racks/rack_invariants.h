// The invariants of a run across racks that hold between two calls to control; the numbers are
// those of docs/internals/invariants.md. The checks abort if one is broken. Under control's lock.
#pragma once

#include <cstddef>

#include "server/control/jobs/job.h"

namespace phub::server {

// REQUIRES: the job spans racks, and is in JobTable::jobs().
void CheckRackRun(const Job& job, RackIndex self, std::size_t core_count);

}  // namespace phub::server
