// The daemons of the rack, and the index of this daemon among them. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/settings.h"

namespace phub::server {

// The entries of a list like "node1:7700,node2:7700". The message of InvalidArgument continues
// "daemons = <value> ...".
absl::StatusOr<std::vector<std::string>> ParseDaemonList(std::string_view text);

struct RackPlace {
  std::vector<std::string> endpoints;  // empty: this daemon is a rack by itself
  std::uint32_t self = 0;
  std::uint32_t aggregator_count = 0;  // the last entries of `endpoints` that are aggregators
};
// InvalidArgument: the settings contradict each other. REQUIRES: each setting by itself is valid.
absl::StatusOr<RackPlace> FindRackPlace(const Settings& settings);

// topology = "probe": the daemons measure the topology instead of reading a file.
bool IsTopologyMeasured(const Settings& settings);

// The racks that jobs may span, followed by the aggregators, one daemon for each, and this daemon's
// index among them. Errors and requirements as for FindRackPlace.
absl::StatusOr<RackPlace> FindPlaceAmongRacks(const Settings& settings);

}  // namespace phub::server
