// Exports and imports plans as MSCCL XML ("algo" files with thread blocks of steps per GPU), to
// exchange them with other tools. Pure; any thread.
//
// Export writes an in-place all-reduce. GPUs are members in the order of ranks. With L chunks in
// total, a tree with share a/L is a run of a chunks. Every ordered pair of communicating members
// has one thread block at each end, with its steps in order. A receiver uses `rrc` for partial sums
// and `r` for results. A step waits for the last step at its GPU that wrote its chunks. Aggregating
// switches cannot be exported.
//
// Import executes the program symbolically. Each transfer of a partial or complete sum becomes an
// edge over a shortest path. Its step is one more than the greatest step of the transfers that it
// waits for. The collectives are:
//  - allreduce: chunks must move up in-trees and down out-trees;
//  - allgather: gives the gather phase; the reversed trees give the reduce phase;
//  - reduce_scatter: gives the reduce phase; the reversed trees give the gather phase.
// Import rejects, with the reason: sums that are completed at several GPUs (recursive doubling),
// values that move to another chunk, other collectives, deadlocks, sends without receives.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::size_t kMscclTextBytesMax = std::size_t{128} << 20;
inline constexpr std::int64_t kMscclChunksMax = 1 << 16;
inline constexpr std::size_t kMscclStepsMax = std::size_t{1} << 21;

absl::StatusOr<std::string> ForestToMsccl(const Topology& topology, const Forest& forest);
// Errors name the line of the XML, or the chunk. Does not verify the forest.
absl::StatusOr<Forest> ParseMsccl(const Topology& topology, std::string_view xml);

}  // namespace phub::plan
