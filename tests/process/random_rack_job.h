// Random jobs that span racks, each of one daemon with one core loop, and the order in which the
// plan has their values summed.
#pragma once

#include <cstdint>
#include <string>

#include "tests/process/random_job.h"

namespace phub::process {

// A switch connects the racks. REQUIRES: the planner is one that applies to it.
RandomJob DrawRackJob(std::uint64_t seed, std::uint32_t racks, const std::string& planner);

}  // namespace phub::process
