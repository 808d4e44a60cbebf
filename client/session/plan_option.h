// JobOptions::plan as it travels.
#pragma once

#include "phub/client.h"

namespace phub::client {

// A plan that is the path of a file becomes what is in it. kInvalidArgument: it cannot be read.
Status ReadPlanFile(JobOptions& options);

}  // namespace phub::client
