// The part of a load for another rack's daemon, in the simulation: what the daemon's LoadRelay and
// the other daemon's LoadStream do over gRPC.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "common/base/random.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimLoadRelay final : public std::enable_shared_from_this<SimLoadRelay> {
 public:
  SimLoadRelay(SimNetwork& network, SimDaemon& daemon, SeededRandom& random)
      : network_(network), daemon_(daemon), random_(random) {}

  void Send(v1::LoadStateRequest part);
  void Cancel();
  // Why the run is wrong, or an empty string.
  const std::string& mistake() const { return mistake_; }

 private:
  using Step = void (SimLoadRelay::*)(server::Control&);
  void Later(Step step);  // after a delay, as a call of control
  void Begin(server::Control& control);
  void TakePart(server::Control& control);
  void End(const absl::Status& status);

  SimNetwork& network_;
  SimDaemon& daemon_;
  SeededRandom& random_;
  std::deque<v1::LoadStateRequest> parts_;
  int next_in_part_ = 0;
  bool busy_ = false, over_ = false;
  server::LoadId load_ = 0;  // 0: not begun
  std::string mistake_;
};

}  // namespace phub::sim
