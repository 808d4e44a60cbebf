// Random jobs that span racks, each of one daemon with one core loop, and the order in which the
// plan has their values summed.
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
// the job asks for as `asked`.
RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const std::string& planner);
RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const plan::Forest& forest, const std::string& asked);
// Each rank at its rack's daemon. Empty, or what is wrong, and all that was said.
std::string RunRanks(const RackProcess& racks, const RandomJob& job);

}  // namespace phub::process
