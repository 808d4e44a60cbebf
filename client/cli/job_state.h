// What a job does, for tables: more than its state says.
#pragma once

#include <string>

#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

// The job's state, except that a running job is "waiting" if some of its ranks have not joined yet,
// and "stalled" if its iterations have stopped: the last one was complete kStalledIterations times
// their usual duration ago, and at least kStalledAtLeast.
std::string StateText(const v1::JobInfo& job);
bool IsStalled(const v1::JobInfo& job);

// "1200", or "-" before the first iteration.
std::string IterationText(const v1::JobInfo& job);
// "3.1 ms", or "-" before the second iteration.
std::string IterationTimeText(const v1::JobInfo& job);

}  // namespace phub::client::cli
