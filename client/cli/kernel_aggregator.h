// Whether this host and user can run phub-aggregator --xdp, for `phubctl doctor --xdp`.
#pragma once

#include <string>
#include <vector>

#include "common/transport/lane_finding.h"

namespace phub::client::cli {

// Reads /proc and /sys below `root`, with the permissions of this process.
std::vector<transport::LaneFinding> KernelAggregatorFindings(const std::string& interface,
                                                             const std::string& root = "");

}  // namespace phub::client::cli
