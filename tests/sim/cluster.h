// A whole cluster in one thread and virtual time: the daemons of one rack or several, their core
// loops and control, jobs and their workers, and the network. One 64-bit seed decides what is
// built, what it does, who runs next, and what breaks. Product code does not notice.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "tests/support/rack_sum.h"

namespace phub::sim {

// The layout of the cluster: one rack with one to three daemons, or several racks with one to three
// daemons each.
enum class Layout : std::uint8_t { kOneRack, kManyRacks };

// Rare events that a swarm must have seen; otherwise it did not test them.
#define PHUB_SIM_ONE_RACK_COVERAGE(X) \
  X(gradients_folded)                 \
  X(replies_deferred)                 \
  X(duplicates_staged)                \
  X(duplicates_applied)               \
  X(staged_discarded)                 \
  X(lanes_replaced)                   \
  X(streams_broken)                   \
  X(several_daemons)                  \
  X(lanes_cut)                        \
  X(crashes)                          \
  X(seats_taken_over)                 \
  X(keys_resumed)                     \
  X(keys_resumed_back)                \
  X(gradients_in_place)               \
  X(loads_checked)                    \
  X(collective_rounds)                \
  X(encoded_rounds)                   \
  X(pooled_rounds)                    \
  X(pooled_moves)                     \
  X(keys_removed)                     \
  X(reduced_in_place)                 \
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
  X(group_rounds_across)                \
  X(overtakes_across)                   \
  X(streams_broken_across) X(keys_resumed_across) X(keys_resumed_back_across) X(surveys)
#define PHUB_SIM_BOTH_COVERAGE(X) \
  X(rounds)                       \
  X(group_rounds)                 \
  X(groups_removed)               \
  X(control_outages)              \
  X(rounds_without_control)       \
  X(long_works)                   \
  X(pages_listed)                 \
  X(version_pages)                \
  X(dumps_taken)                  \
  X(dump_records)                 \
  X(dump_silences)                \
  X(jobs_failed) X(daemons_lost) X(snapshots_taken) X(snapshots_missed) X(snapshots_cancelled)

struct Coverage {
#define PHUB_FIELD(name) std::uint64_t name = 0;
  PHUB_SIM_BOTH_COVERAGE(PHUB_FIELD)
  PHUB_SIM_ONE_RACK_COVERAGE(PHUB_FIELD)
  PHUB_SIM_MANY_RACKS_COVERAGE(PHUB_FIELD)
#undef PHUB_FIELD
  void Add(const Coverage& other);
  std::string ToString() const;
  // The events that were never seen; empty if all were.
  std::string Missing(Layout layout) const;
};

struct Outcome {
  std::string problem;      // empty if the run is correct
  std::string description;  // everything that the seed drew
  std::uint64_t hash = 0;   // over all events and final parameters; equal seeds give equal hashes
  TimeNs virtual_time = 0;
  Coverage coverage;
};

// order: in which the oracle sums what racks exchange. Any order except the plan's must find
// mistakes.
Outcome RunSeed(Layout layout, std::uint64_t seed, oracle::Order order = oracle::Order::kPlan);

}  // namespace phub::sim
