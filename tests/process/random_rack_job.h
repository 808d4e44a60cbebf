// Random jobs that span racks, on daemons with one core loop each, and the order in which the plan
// sums their values.
#pragma once

#include <cstdint>
#include <string>

#include "common/plan/forest.h"
#include "common/plan/topology.h"
#include "tests/process/rack_process.h"
#include "tests/process/random_job.h"

namespace phub::process {

// The number of jobs to draw for each planner: more with PHUB_TEST_LONG=1, and fewer under
// sanitizers.
std::uint64_t RackJobsPerPlanner();
// The racks are connected by a switch. REQUIRES: the planner applies to it.
RandomJob DrawRackJob(std::uint64_t seed, std::uint32_t racks, const std::string& planner);
// Draws a job over this topology (with a daemon for each aggregating switch), or for this plan,
// which the job asks for as `asked`. daemons: the number per rack.
RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const std::string& planner, std::uint32_t daemons = 1);
RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const plan::Forest& forest, const std::string& asked,
                      std::uint32_t daemons = 1);
// Runs each rank at its rack, on a random daemon. Returns an empty string, or the problem and all
// outputs.
std::string RunRanks(const RackProcess& racks, const RandomJob& job);

}  // namespace phub::process
