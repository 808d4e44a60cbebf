// One key of a simulated worker, with the memory that libphub would own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/sim/sim_worker.h"

namespace phub::sim {

class SimWorker::Key final : public client::RoundListener {
 public:
  Key(SimWorker& worker, std::uint32_t key_index)
      : index(key_index),
        number(key_index),
        pushed(PushedBy(worker.script_, worker.script_.keys[key_index], worker.rank_)),
        received(ReceivedBy(worker.script_, worker.script_.keys[key_index], worker.rank_)),
        own_gradients(std::max(pushed.size(), EncodedFloats(worker.script_, key_index))),
        own_parameters(received.size()),
        gradients(own_gradients.data()),
        parameters(own_parameters.data()) {}

  void OnRoundComplete(std::uint64_t, Iteration iteration, bool skipped) override {
    completed = iteration.value;
    was_skipped = skipped;
    arrived = true;
  }
  void OnCancelAnswered(std::uint64_t, bool withdrawn) override {
    if (withdrawn) active = false;
  }

  // The room that encoded gradients need, which small chunks exceed their own by.
  static std::size_t EncodedFloats(const JobScript& job, std::uint32_t key) {
    const KeyScript& script = job.keys[key];
    if (script.encoding.none()) return 0;
    const std::uint64_t bytes = numeric::EncodedKeyBytes(script.encoding, script.element_count,
                                                         job.chunk_bytes / sizeof(float));
    return static_cast<std::size_t>((bytes + sizeof(float) - 1) / sizeof(float));
  }

  std::vector<float> Parameters() const { return {parameters, parameters + received.size()}; }

  const std::uint32_t index;                  // in the script
  KeyIndex number;                            // the daemon's; another one for keys of groups
  const std::vector<std::uint32_t> pushed;    // the elements of the key in `gradients`
  const std::vector<std::uint32_t> received;  // the elements of the key in `parameters`
  std::vector<float> own_gradients, own_parameters;
  float* gradients;   // in own_gradients, or in memory shared with the daemon
  float* parameters;  // likewise
  bool parameters_shared = false;
  std::uint64_t completed = 0;
  std::uint64_t ticket = 0;
  bool active = false;  // a round is in progress
  bool was_skipped = false;
  bool arrived = false;  // its parameters have arrived, but were not checked yet
};

}  // namespace phub::sim
