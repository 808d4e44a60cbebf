// What `phubd --check-config` checks besides the form of the settings: whether phubd would start
// with them here. It does what the start does, without lasting effects: it opens devices, reads
// files, and binds ports for an instant.
#pragma once

#include <string>
#include <vector>

#include "common/base/cpu_topology.h"
#include "server/config/settings.h"

namespace phub::server {

// One line for each problem, with the setting; empty: phubd would start. A port or a socket that a
// running phubd with this control port uses is no problem: it is the instance that is checked.
std::vector<std::string> CheckStart(const Settings& settings, const CpuTopology& topology);

}  // namespace phub::server
