// How this host's kernel shares its cores between phubd and workers, for `phubctl doctor`.
#pragma once

#include <string>
#include <vector>

#include "common/transport/lane_finding.h"

namespace phub::client::cli {

// `setting`: the file of sched_autogroup_enabled. Kernels without that feature have none.
std::vector<transport::LaneFinding> SchedulingFindings(
    const std::string& setting = "/proc/sys/kernel/sched_autogroup_enabled");

}  // namespace phub::client::cli
