// The schema of the control store, as a list of migration steps. A released step is never changed;
// add a new step at the end.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "server/tenant/database.h"

namespace phub::server {

std::span<const char* const> ControlStoreMigrations();

// Migrates a database to the last version, one step per transaction, so that after a kill it has
// either the old or the new version of a step. FAILED_PRECONDITION: it is newer than the steps.
absl::Status Migrate(Database& database, std::span<const char* const> steps);

}  // namespace phub::server
