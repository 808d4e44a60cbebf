// The invariants of a job that hold between two calls to control; the numbers are those of
// docs/internals/invariants.md. The checks abort if one is broken. Under control's lock.
#pragma once

#include <cstddef>

#include "server/control/jobs/job.h"

namespace phub::server {

// J3 to J9, and those of each member. REQUIRES: the job is in JobTable::jobs().
void CheckJob(const Job& job, const Ledger& ledger, std::size_t core_count);

}  // namespace phub::server
