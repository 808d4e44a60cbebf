// Runs the ranks of a random job through libphub, from joining to leaving.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/process/random_job.h"

namespace phub::process {

// Runs a thread per rank at the endpoints of the daemons, in an order drawn from the job's seed.
// Compares the bits of every version with the serial ones. Returns an empty string, or the job and
// the problem.
std::string RunRanks(const RandomJob& job,
                     const std::function<std::string(std::uint32_t rank)>& endpoint_of);

}  // namespace phub::process
