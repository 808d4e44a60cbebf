// Formats a topology of racks and the time of its measurement. Pure functions, except AgeText().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/plan/topology.h"

namespace phub::client::cli {

std::string AgeText(std::int64_t unix_ns);  // time since then, in whole seconds
// "{0 3 5} {1 2 4} on 16 links": the racks of each switch. json: phub.topology.v1.
std::string BriefTopologyText(std::string_view json);
// One line for each switch with its racks, and one for each link.
std::string TopologySwitchesText(const plan::Topology& topology);

}  // namespace phub::client::cli
