// Plans as MSCCL XML ("algo" files: per GPU thread blocks of steps), so that plans of other tools
// can be verified here, and ours there. Pure; any thread.
//
// Out: an in-place all-reduce. Members are GPUs in the order of their ranks; a tree of share a/L is
// a run of chunks, L chunks in all; every ordered pair of members that talk has one thread block at
// each end, in the order of steps. A receiver of partial sums does `rrc`, of results `r`; a step
// waits for the last one at its GPU that wrote its chunks. Aggregating switches cannot be
// expressed.
//
// In: coll="allreduce" whose chunks move up in-trees and down out-trees. The program is executed
// symbolically; each transfer becomes an edge (of a partial sum, or of the complete one), routed
// over a shortest path; its step is one more than the greatest of the transfers that it had to wait
// for. coll="allgather" gives the gather phase, and the same trees backwards give the reduce phase;
// coll="reduce_scatter" the other way round. Refused, with the reason: sums that are completed at
// several GPUs (recursive doubling), values that change their place among the chunks, other
// collectives, waits in a circle, sends without receives.
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
// Errors name the line of the XML, or the chunk. The forest is not verified.
absl::StatusOr<Forest> ParseMsccl(const Topology& topology, std::string_view xml);

}  // namespace phub::plan
