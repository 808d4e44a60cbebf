// The schema of control state, as the list of steps that led to it. A step, once released, is never
// changed: a new one is added behind it.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "server/tenant/database.h"

namespace phub::server {

std::span<const char* const> ControlStoreMigrations();

// Brings a database from whatever version it has to the last, one step per transaction: a kill
// leaves it at one version or the next. FAILED_PRECONDITION if it is newer than the steps.
absl::Status Migrate(Database& database, std::span<const char* const> steps);

}  // namespace phub::server
