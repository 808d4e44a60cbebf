// What a job does, for tables: more than its state says.
#pragma once

#include <string>
#include <utility>
#include <vector>

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

// How gradients with sum=fixed reach core loops, and which ones: {"aggregator 10.0.0.9:7701",
// "0-3, 7"}. Ordered by the first core loop.
std::vector<std::pair<std::string, std::string>> CoresBySumWay(const v1::JobInfo& job);

}  // namespace phub::client::cli
