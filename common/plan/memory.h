// The memory that daemons read and write when they exchange data along a plan. Daemons count the
// same (server/metrics/memory_metrics.h), and the two must agree. Pure functions; any thread.
//
// A vertex of a tree handles each element of the tree's share as follows, with n own ranks, k
// reduce children and c gather children. The sizes g, s, p and v are those of a gradient, a sum, a
// sent parameter and the kept value; m is p if the kept value has another type than the sent one,
// otherwise 0; o is 1 if there is an optimizer, with t arrays of state.
//
//                       read                  written
//   landing                                   n g + k s, and p unless it is the home
//   sums                n g                   s           own ranks; aggregators have none
//                       (1 + k) s             s           if k > 0; aggregators read k s
//   update (home)       s + o v + t s         v + m + t s
//   sending             c p + n p, and s unless it is the home
//
// These are the accesses of lanes over a network. Ranks that share memory with the daemon write
// their gradients themselves, and results are copied to their memory.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct MemoryOptions {
  double elements = 0;       // the size of the data
  std::uint32_t ranks = 1;   // in every rack
  bool updates = false;      // the job has an optimizer
  std::uint32_t states = 0;  // arrays of the optimizer's state
  // Bytes per element.
  std::uint32_t gradient_bytes = 4;
  std::uint32_t sum_bytes = 4;
  std::uint32_t parameter_bytes = 4;
  std::uint32_t kept_bytes = 4;
  bool keeps_masters = false;  // the kept values have another type than the sent parameters
};

struct MemoryTraffic {
  double read = 0;
  double written = 0;
  double all() const { return read + written; }
};

// Bytes of one exchange at one daemon.
struct DaemonMemory {
  NodeIndex node;
  double sent = 0;  // to other racks
  double received = 0;
  MemoryTraffic landing, sums, update, sending;
  // Memory that an exchange touches, each byte once: sums, landed partial sums, parameters and
  // state. No order of work can move less through a cache that is much smaller than the data. The
  // staging of gradients is not included, since its slots are used again and again.
  double touched = 0;

  double uplink() const { return sent + received; }
  MemoryTraffic all() const;
};

// All daemons of the plan: members in the order of ranks, then aggregators that take part.
// REQUIRES: Verify() accepted the forest.
std::vector<DaemonMemory> MemoryOf(const Topology& topology, const Forest& forest,
                                   const MemoryOptions& options);
// The sum over all daemons; `node` has no meaning.
DaemonMemory SumOf(const std::vector<DaemonMemory>& daemons);

}  // namespace phub::plan
