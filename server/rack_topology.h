// How the racks of the configuration are connected: the settings racks and topology. Cold.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"
#include "server/config/settings.h"

namespace phub::server {

using RackTopology = std::shared_ptr<const plan::Topology>;

// Null without racks. Without a file every rack has one link to one switch. InvalidArgument: the
// file cannot be read, is no topology, or has another number of members than there are racks.
absl::StatusOr<RackTopology> ReadRackTopology(const Settings& settings);

}  // namespace phub::server
