// Reads the text of a topology. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::view {

// TOML, or JSON if it begins with '{'.
absl::StatusOr<plan::Topology> ParseTopology(const std::string& text);

}  // namespace phub::view
