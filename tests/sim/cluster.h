// A whole cluster (a daemon, its core loops and control, jobs and their workers, the network) in
// one thread and virtual time, decided by one 64-bit seed: what is built, what they do, who runs
// next, what breaks. Product code does not notice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/script.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_worker.h"

namespace phub::sim {

// Rare things that a swarm must have seen, or it did not test them.
struct Coverage {
  std::uint64_t rounds = 0;
  std::uint64_t gradients_folded = 0;
  std::uint64_t replies_deferred = 0;
  std::uint64_t duplicates_staged = 0;
  std::uint64_t duplicates_applied = 0;
  std::uint64_t staged_discarded = 0;
  std::uint64_t lanes_replaced = 0;
  std::uint64_t jobs_failed = 0;
  void Add(const Coverage& other);
};

struct Outcome {
  std::string problem;      // empty: the run is right
  std::string description;  // everything that was drawn
  std::uint64_t hash = 0;   // of all events and final parameters: equal for equal seeds
  TimeNs virtual_time = 0;
  Coverage coverage;
};

Outcome RunSeed(std::uint64_t seed);

}  // namespace phub::sim
