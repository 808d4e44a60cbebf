// One key of a simulated worker, with the memory that libphub would own.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/sim_worker.h"

namespace phub::sim {

class SimWorker::Key final : public client::RoundListener {
 public:
  Key(SimWorker& worker, std::uint32_t key_index)
      : index(key_index),
        gradients(worker.script_.keys[key_index].element_count),
        parameters(worker.script_.keys[key_index].element_count) {}

  void OnRoundComplete(std::uint64_t, Iteration iteration) override {
    completed = iteration.value;
    arrived = true;
  }
  void OnCancelAnswered(std::uint64_t, bool withdrawn) override {
    if (withdrawn) active = false;
  }

  const std::uint32_t index;
  std::vector<float> gradients, parameters;
  std::uint64_t completed = 0;
  std::uint64_t ticket = 0;
  bool active = false;   // a round is under way
  bool arrived = false;  // and its parameters are here, not looked at yet
};

}  // namespace phub::sim
