// Which aggregator sums the gradients of a job on which core loop. Pure; any thread.
//
// The core loops of a new job get aggregators one by one. Each gets an aggregator with the fewest
// streams; among equals, the first one from `first` on, in a circle. So
//   - a job with many core loops uses all aggregators, and their shares differ by at most one
//     stream if the daemon has no other job;
//   - a daemon with one core loop and many jobs uses all aggregators;
//   - jobs that have ended leave no gap: the next job gets what they used.
// A core loop keeps its aggregator until the job ends, also if the aggregator is lost. Its
// gradients then go over tcp, and the other core loops are not affected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/control/jobs/job_sums.h"

namespace phub::server {

// By core loop of the new job. `streams`: by aggregator, how many streams the other jobs have; not
// empty. `first` may be any number: daemons that use the same aggregators begin with different
// ones.
std::vector<AggregatorIndex> ShareAggregators(std::vector<std::uint32_t> streams,
                                              std::size_t core_loops, std::size_t first);

}  // namespace phub::server
