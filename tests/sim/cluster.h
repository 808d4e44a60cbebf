// A whole cluster (daemons of a rack or of several, their core loops and control, jobs and their
// workers, the network) in one thread and virtual time, decided by one 64-bit seed: what is built,
// what they do, who runs next, what breaks. Product code does not notice.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "tests/support/rack_sum.h"

namespace phub::sim {

// What a seed draws: one rack, of one to three daemons; or several, of one to three each.
enum class Layout : std::uint8_t { kOneRack, kManyRacks };

// Rare things that a swarm must have seen, or it did not test them.
#define PHUB_SIM_ONE_RACK_COVERAGE(X) \
  X(gradients_folded)                 \
  X(replies_deferred)                 \
  X(duplicates_staged)                \
  X(duplicates_applied)               \
  X(staged_discarded)                 \
  X(lanes_replaced)                   \
  X(streams_broken)                   \
  X(several_daemons)                  \
  X(crashes)                          \
  X(seats_taken_over)                 \
  X(keys_resumed)                     \
  X(keys_resumed_back)                \
  X(gradients_in_place)               \
  X(gradients_copied) X(replies_in_pass) X(parameters_shared) X(decisions) X(rounds_skipped)
#define PHUB_SIM_MANY_RACKS_COVERAGE(X) \
  X(partials)                           \
  X(aggregated)                         \
  X(results)                            \
  X(jobs_across_racks)                  \
  X(jobs_beside)                        \
  X(racks_cut)                          \
  X(envelopes_repeated)                 \
  X(several_planes)                     \
  X(streams_broken_across) X(keys_resumed_across) X(keys_resumed_back_across) X(surveys)
#define PHUB_SIM_BOTH_COVERAGE(X) \
  X(rounds)                       \
  X(jobs_failed) X(daemons_lost) X(snapshots_taken) X(snapshots_missed) X(snapshots_cancelled)

struct Coverage {
#define PHUB_FIELD(name) std::uint64_t name = 0;
  PHUB_SIM_BOTH_COVERAGE(PHUB_FIELD)
  PHUB_SIM_ONE_RACK_COVERAGE(PHUB_FIELD)
  PHUB_SIM_MANY_RACKS_COVERAGE(PHUB_FIELD)
#undef PHUB_FIELD
  void Add(const Coverage& other);
  std::string ToString() const;
  // What was never seen; empty: all was.
  std::string Missing(Layout layout) const;
};

struct Outcome {
  std::string problem;      // empty: the run is right
  std::string description;  // everything that was drawn
  std::uint64_t hash = 0;   // of all events and final parameters: equal for equal seeds
  TimeNs virtual_time = 0;
  Coverage coverage;
};

// order: in which the oracle sums what racks exchange. In any but the plan's it finds mistakes.
Outcome RunSeed(Layout layout, std::uint64_t seed, oracle::Order order = oracle::Order::kPlan);

}  // namespace phub::sim
