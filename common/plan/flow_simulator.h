// The event loop of the simulator's flow mode; see common/plan/simulator.h. One thread.
//
// Transfers that must have equal rates form one bundle: the cost then depends on the number of
// messages that members would send, not on the number of trees. If the end of a bundle moves to a
// later time, its event stays in the queue and is queued again when it fires.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "common/plan/fair_share.h"
#include "common/plan/simulation_graph.h"
#include "common/plan/simulator.h"

namespace phub::plan {

inline constexpr double kPicosecondsPerSecond = 1e12;

class FlowSimulator {
 public:
  FlowSimulator(const Topology& topology, const Forest& forest, const SimulationOptions& options);
  // Fails if some transfer never starts, which cannot happen if Verify has accepted the forest.
  absl::StatusOr<SimulationResult> Run();

 private:
  enum class Kind : std::uint8_t { kSent, kArrived, kSummed, kOptimized };
  struct Event {
    std::int64_t time_ps;
    Kind kind;
    std::uint32_t id;       // transfer; kSent: bundle; kOptimized: gate and piece
    std::uint32_t version;  // kSent: ignored if the bundle's version has changed
    bool operator>(const Event& other) const {
      if (time_ps != other.time_ps) return time_ps > other.time_ps;
      if (kind != other.kind) return kind > other.kind;
      return id != other.id ? id > other.id : version > other.version;
    }
  };
  struct Transfer {
    std::uint32_t place = 0;           // index in schedule_
    std::uint32_t next_in_bundle = 0;  // kNone: it is the last
    bool is_ready = false;
  };
  // Transfers of equal size that start at the same time on the same path. They have equal rates and
  // end at the same time. A bundle is one flow of shares_ and has the flow's number.
  struct Bundle {
    double bytes_left = 0;  // per transfer
    std::int64_t started_ps = 0;
    std::int64_t updated_ps = 0;
    std::int64_t ends_ps = 0;
    std::int64_t queued_ps = 0;  // time of its event: at most ends_ps
    std::uint32_t version = 0;
    std::uint32_t first_transfer = 0;
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  // The transfers of a sender on one link, ordered by wave. Transfers [first, last) of schedule_
  // are the current wave; `unsent` of them are not sent completely.
  struct SendQueue {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    std::uint32_t end = 0;
    std::uint32_t unsent = 0;
  };

  const GraphEdge& EdgeOf(std::uint32_t transfer) const {
    return graph_.edges[transfer / options_.pieces];
  }
  std::uint32_t PieceOf(std::uint32_t transfer) const { return transfer % options_.pieces; }
  std::uint32_t WaveOf(std::uint32_t transfer) const {
    return EdgeOf(transfer).step + PieceOf(transfer);
  }
  double BytesOf(const GraphEdge& edge) const { return tree_bytes_[edge.tree]; }

  void BuildSchedule();
  void NextWave(SendQueue& queue);
  void MakeReady(std::uint32_t transfer);
  void StartBundles();
  void Handle(const Event& event);
  void OnEndOfBundle(const Event& event);
  void OnSent(std::uint32_t transfer);
  void OnArrived(std::uint32_t transfer);
  void CountAtGate(std::uint32_t gate, std::uint32_t piece);
  void OpenGate(std::uint32_t gate, std::uint32_t piece);
  void UpdateRates();
  // The time when `node` finishes `bytes` of additional work that starts now or later.
  std::int64_t Work(NodeIndex node, double bytes, double bytes_per_s);
  std::uint64_t Work() const { return event_count_ + shares_.work(); }
  SimulationResult TakeResult();

  const Topology& topology_;
  const Forest& forest_;
  SimulationOptions options_;
  SimulationGraph graph_;
  std::vector<double> tree_bytes_;  // by tree: bytes of one piece
  std::vector<std::int64_t> path_latency_ps_;
  std::vector<std::int64_t> busy_until_ps_;  // by node
  std::vector<std::uint32_t> gate_count_;    // by gate and piece: transfers that arrived
  std::vector<Transfer> transfers_;          // by edge and piece
  std::vector<std::uint32_t> schedule_;      // transfers, ordered by queue and wave
  std::vector<SendQueue> queues_;            // by first link
  std::vector<std::uint32_t> starting_;      // transfers that start now
  std::vector<Bundle> bundles_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  FairShare shares_;
  std::int64_t now_ps_ = 0;
  std::int64_t finished_ps_ = 0;
  std::size_t arrived_count_ = 0;
  std::uint64_t event_count_ = 0;
  std::vector<TransferTimes> timeline_;
};

}  // namespace phub::plan
