// How much work is done in one turn under control's lock, counted in units: keys, pieces of
// training state, jobs, ranks and tenants that are described, 4 KiB of a rank's record in a dump.
// The bounds do not depend on the number of ranks, keys, jobs or tenants. The simulation asserts
// them in every turn (tests/sim/sim_daemon.h). Not counted: work that takes a few nanoseconds for
// each key or job.
#pragma once

#include <algorithm>
#include <cstddef>

namespace phub::server {

struct TurnBudget {
  // What ControlTurns::RunLong does at once, all calls of a turn together: far below a millisecond.
  std::size_t at_once = 128;
  std::size_t keys = 1024;    // in one part of a snapshot or load
  std::size_t pieces = 2048;  // in one part of a snapshot, or of a load's message
  std::size_t jobs = 128;     // in one page of the list of jobs; the same for tenants
  std::size_t ranks = 128;    // in one part of a dump, or of a description of jobs or stalls

  // The bound of a whole turn. After work that was done at once, a turn may send one part, or the
  // keys that the work was about.
  std::size_t Max() const { return at_once + std::max({at_once, keys, pieces, jobs, ranks}); }
};

}  // namespace phub::server
