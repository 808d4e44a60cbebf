// Jobs with apply=iteration: when an iteration is whole, and what becomes of it.
//
// The daemons say of every chunk that it is summed, and the squared norm of the sum. Once that is
// known of every chunk of every key, the iteration is decided: skipped, or applied with all
// gradients times a scale. Every rank is told the same of every chunk and adds the norms up in the
// same order (keys as they were added, chunks by offset), so all ranks decide the same bits,
// wherever the chunks lie; each core loop is told by all, and applies what they agree on.
//
// A decision is said on every lane that has chunks, and again on each lane that comes anew: until
// the replies are here nobody knows whether the daemon has heard it.
//
// Belongs to the engine's thread, but for outcome(). Nothing here allocates, except AddKeys.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "client/lane.h"
#include "common/transport/transport.h"

namespace phub::client {

class IterationDecider {
 public:
  IterationDecider(const EngineConfig& config, EngineCounters& counters);

  // What a batch has added to the engine's keys and lanes.
  void AddKeys(const KeyBatch& batch);
  // The daemon says of a chunk that it is summed; it has been entered there. Decides, if it was the
  // last.
  void OnSummed(std::span<Lane> lanes);
  // The lane has a new connection.
  void OnAttached(Lane& lane) const { lane.decision_due = lane.decisions > 0; }
  // True if it sent one.
  bool Send(Lane& lane, transport::Transport& transport);
  bool last_skipped() const { return skip_; }

  // Any thread; never behind what a RoundListener has heard.
  struct Outcome {
    std::uint64_t decided = 0;
    std::uint64_t skipped = 0;
    bool last_skipped = false;
    double norm = 0.0;
    double scale = 1.0;
  };
  Outcome outcome() const;

 private:
  struct Place {
    std::uint32_t lane = 0;
    std::uint32_t chunk = 0;
  };
  void Decide(std::span<Lane> lanes);

  const EngineConfig& config_;
  EngineCounters& counters_;
  std::vector<Place> chunks_;     // in the order in which their norms are added
  std::size_t summed_count_ = 0;  // of the iteration that is not decided
  bool skip_ = false;             // the last decision
  std::atomic<std::uint64_t> decided_{0};
  std::atomic<std::uint64_t> skipped_{0};
  std::atomic<bool> last_skipped_{false};
  std::atomic<double> norm_{0.0};
  std::atomic<double> scale_{1.0};
};

}  // namespace phub::client
