// Random jobs that span racks, of daemons with one core loop each, and the order in which the plan
// has their values summed.
#pragma once

#include <cstdint>
#include <string>

#include "common/plan/forest.h"
#include "common/plan/topology.h"
#include "tests/process/rack_process.h"
#include "tests/process/random_job.h"

namespace phub::process {

// A switch connects the racks. REQUIRES: the planner is one that applies to it.
RandomJob DrawRackJob(std::uint64_t seed, std::uint32_t racks, const std::string& planner);
// Over this topology, with a daemon for each of its aggregating switches. And by this plan, which
// the job asks for as `asked`. daemons: of each rack.
RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const std::string& planner, std::uint32_t daemons = 1);
RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const plan::Forest& forest, const std::string& asked,
                      std::uint32_t daemons = 1);
// Each rank at its rack, at one daemon or another. Empty, or what is wrong, and all that was said.
std::string RunRanks(const RackProcess& racks, const RandomJob& job);

}  // namespace phub::process
