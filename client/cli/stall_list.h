// Stalled rounds of a job, from all daemons of its rack: each daemon knows only the chunks that it
// has. Pure function.
#pragma once

#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

// Adds what another daemon reports. Rounds of the same key become one. The round that has waited
// longest comes first.
void MergeStalls(const v1::ListStallsResponse& part, v1::ListStallsResponse& all);

}  // namespace phub::client::cli
