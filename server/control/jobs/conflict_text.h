// What ranks disagree about, with the values of both. Pure functions.
#pragma once

#include <string>

#include "server/core/commands.h"
#include "server/core/conflict.h"

namespace phub::server {

// A sentence about a fault whose `code` says that two sides disagree. `who`, `other`: the sides of
// the conflict, such as "rank 2 (node5, pid 4711)".
std::string DescribeConflict(FaultCode code, const Conflict& conflict, const std::string& who,
                             const std::string& other);

}  // namespace phub::server
