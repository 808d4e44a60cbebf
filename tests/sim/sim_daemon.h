// A daemon of the simulation: the product's Control and CoreLoops over simulated transports, one
// network node per core loop, and over the product's own shared memory with both ends in this
// process. One thread; the cluster decides who runs next.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/topology.h"
#include "common/transport/shm/shm_transport.h"
#include "server/control/on_control.h"
#include "server/control/parts.h"
#include "server/core/core_loop.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_transport.h"

namespace phub::sim {

struct SimDaemonOptions {
  std::uint32_t position = 0;  // in the rack's list
  std::vector<std::string> rack_endpoints;
  // If there are several racks: the daemons of all racks, and this one's index.
  std::vector<std::string> racks;
  std::uint32_t rack = 0;
  std::uint32_t aggregators = 0;  // the number of aggregators at the end of `racks`
  std::shared_ptr<const plan::Topology> topology;
  bool topology_is_measured = false;  // rack 0 measures the topology and finds this one
  NodeId first_node = 0;  // nodes [first_node, first_node + core_count) belong to this daemon
  std::uint32_t core_count = 1;
  bool shares_memory = false;
  transport::ShmLimits shm;
  server::TurnBudget turn;
};
// Small budgets, so that short jobs need several turns; sometimes the product's.
server::TurnBudget DrawTurnBudget(SeededRandom& random);

// The transport of a core loop (or an engine) that serves a lane.
inline constexpr std::uint8_t kSimTransportIndex = 0;
inline constexpr std::uint8_t kShmTransportIndex = 1;

class SimDaemon final : private server::Surveyor, private server::Background {
 public:
  SimDaemon(SimNetwork& network, Random& random, const SimDaemonOptions& options);

  std::uint32_t position() const { return options_.position; }
  const std::string& endpoint() const { return options_.rack_endpoints[options_.position]; }
  std::uint32_t core_count() const { return options_.core_count; }
  bool is_aggregator() const {
    return options_.aggregators > 0 &&
           options_.rack + options_.aggregators >= options_.racks.size();
  }
  bool shares_memory() const { return options_.shares_memory; }
  const transport::ShmLimits& shm() const { return options_.shm; }
  NodeId node(std::uint32_t core) const { return options_.first_node + core; }
  server::Control& control() { return *control_; }
  bool RunCore(std::uint32_t core);  // one RunOnce; true if it did any work
  void RunControl();                 // one Poll
  // Runs a call of control at once, as one turn under its lock. No turn may do more work than the
  // budget permits, see mistake().
  template <typename Call>
  auto Turn(const Call& call) {
    struct Over {
      ~Over() { daemon.CheckTurn(); }
      SimDaemon& daemon;
    };
    const server::OnControl on_control;
    control_->turns().Begin();
    const Over over{*this};
    return call(*control_);
  }
  // Why the run is wrong, or an empty string.
  const std::string& mistake() const { return mistake_; }
  std::uint64_t long_works() const { return long_works_; }  // without control's lock
  bool works_long() const { return !long_work_.empty(); }   // calls may wait for it
  // Runs a call of control, as gRPC's threads do. While control is stuck, the call waits.
  void CallControl(std::function<void(server::Control&)> call);
  // Control neither runs nor answers calls until then, as if its thread stood still with the lock.
  void StickControl(TimeNs until) { stuck_until_ = until; }
  bool control_is_stuck() const { return network_.clock().Now() < stuck_until_; }
  std::uint64_t Count(server::CoreCounter counter) const;
  std::uint64_t CountOfControl(const std::string& name) const;

  // The daemon dies, and stops running. If `silent`, its connections do not close.
  void Die(bool silent);
  bool alive() const { return alive_; }
  bool closed() const { return closed_; }  // true after it died, if callers are refused
  // Called when it dies and its connections close.
  void OnClosed(std::function<void()> hear) { on_closed_.push_back(std::move(hear)); }

 private:
  void Begin() override;
  void Run(const std::string& tenant, std::function<void()> work,
           std::function<void()> then) override;
  void RunLongWork();
  void CheckTurn();
  void RunWaitingCalls();

  SimNetwork& network_;
  Random& random_;
  const SimDaemonOptions options_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::unique_ptr<server::CoreLoop>> loops_;
  std::unique_ptr<server::Control> control_;
  TimeNs stuck_until_ = 0;
  std::vector<std::function<void(server::Control&)>> waiting_calls_;
  std::deque<std::pair<std::function<void()>, std::function<void()>>> long_work_;
  std::uint64_t long_works_ = 0;
  std::string mistake_;
  bool alive_ = true;
  bool closed_ = false;
  std::vector<std::function<void()>> on_closed_;
};

using SimRack = std::vector<std::unique_ptr<SimDaemon>>;

}  // namespace phub::sim
