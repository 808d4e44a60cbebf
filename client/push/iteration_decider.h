// For jobs with apply=iteration: decides whether an iteration is applied or skipped.
//
// The daemons report for every chunk that it is summed, with the squared norm of the sum. After the
// reports for all chunks of all keys, the rank decides: skip the iteration, or apply it with all
// gradients multiplied by a scale. Every rank receives the same reports and adds the norms in the
// same order (keys in order of addition, chunks by offset). So all ranks decide the same bits, on
// any placement of chunks. Collective keys are left out. Each core loop receives the decision of
// every rank and applies it.
//
// A decision is sent on every lane that has such chunks, and again after each reconnection: until
// the replies arrive, this rank does not know whether the daemon received it.
//
// Runs on the engine's thread, except outcome(). Only AddKeys() allocates.
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

  // Called after a batch was added to the engine's keys and lanes.
  void AddKeys(const KeyBatch& batch);
  // The daemon reported a sum, and the report is stored in the chunk. Decides after the last chunk.
  void OnSummed(std::span<Lane> lanes);
  // The lane has a new connection.
  void OnAttached(Lane& lane) const { lane.decision_due = lane.decisions > 0; }
  // Sends the decision if it is due. True if one was sent.
  bool Send(Lane& lane, transport::Transport& transport);
  bool last_skipped() const { return skip_; }

  // Any thread. Never older than the last event of a RoundListener.
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
  std::vector<bool> is_awaited_;  // [lane]: has some of these chunks, so it gets decisions
  std::size_t summed_count_ = 0;  // chunks reported in the undecided iteration
  bool skip_ = false;             // the last decision
  std::atomic<std::uint64_t> decided_{0};
  std::atomic<std::uint64_t> skipped_{0};
  std::atomic<bool> last_skipped_{false};
  std::atomic<double> norm_{0.0};
  std::atomic<double> scale_{1.0};
};

}  // namespace phub::client
