// Prepares JobOptions::plan for the join request.
#pragma once

#include "phub/client.h"

namespace phub::client {

// Replaces the path of a plan file by the file's contents. kInvalidArgument: the file cannot be
// read.
Status ReadPlanFile(JobOptions& options);

}  // namespace phub::client
