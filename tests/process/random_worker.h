// One rank of a random job, through libphub, from joining to leaving.
#pragma once

#include <cstdint>
#include <string>

#include "tests/process/random_job.h"

namespace phub::process {

// Compares the bits of every version with the serial ones. Empty, or the first thing that is wrong.
std::string RunRank(const RandomJob& job, std::uint32_t rank, const std::string& endpoint);

}  // namespace phub::process
