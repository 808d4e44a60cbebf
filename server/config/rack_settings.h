// Which daemons make up the rack, and which of them this one is. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/settings.h"

namespace phub::server {

// The entries of `daemons`: "node1:7700,node2:7700". InvalidArgument completes the sentence
// "daemons = <value> ...".
absl::StatusOr<std::vector<std::string>> ParseDaemonList(std::string_view text);

struct RackPlace {
  std::vector<std::string> endpoints;  // empty: a rack of its own
  std::uint32_t self = 0;
  std::uint32_t aggregator_count = 0;  // among racks: the last so many of `endpoints`
};
// InvalidArgument says what does not fit together. The settings are right each by itself.
absl::StatusOr<RackPlace> FindRackPlace(const Settings& settings);

// topology = "probe": the daemons measure it, and there is no file.
bool IsTopologyMeasured(const Settings& settings);

// The racks that jobs may span and then the aggregators, one daemon of each, and which of them this
// daemon is. The same errors.
absl::StatusOr<RackPlace> FindPlaceAmongRacks(const Settings& settings);

}  // namespace phub::server
