// The ranks of a random job, through libphub, from joining to leaving.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/process/random_job.h"

namespace phub::process {

// A thread for each rank, in an order that the job's seed says, at the endpoints of their daemons.
// Compares the bits of every version with the serial ones. Empty, or the job and what is wrong.
std::string RunRanks(const RandomJob& job,
                     const std::function<std::string(std::uint32_t rank)>& endpoint_of);

}  // namespace phub::process
