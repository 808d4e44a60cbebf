// A rank's client in the simulation that sends a checkpoint to one daemon, as client/checkpoint and
// the daemon's LoadStream do over gRPC: in messages, and each message in as many turns of control
// as its budget requires. In a job that spans racks, the parts of other racks' daemons are passed
// on to them. It always ends without success, so that training is not affected: the last piece is
// missing, or the client cancels.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_load_relay.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimLoader final : public std::enable_shared_from_this<SimLoader> {
 public:
  struct Checkpoint {
    std::string session_id;
    std::vector<v1::KeyStateInfo> keys;
    std::vector<v1::StatePiece> pieces;  // those of this daemon or of its plane, at least one
    std::vector<SimDaemon*> plane;       // [rack]; empty: the job does not span racks
  };
  SimLoader(SimNetwork& network, SimDaemon& daemon, SeededRandom& random, Checkpoint checkpoint)
      : network_(network), daemon_(daemon), random_(random), checkpoint_(std::move(checkpoint)) {}

  void Start();
  bool checked() const { return checked_; }  // control took every piece except the last
  // Why the run is wrong, or an empty string.
  const std::string& mistake() const;

 private:
  using Step = void (SimLoader::*)(server::Control&);
  void Later(Step step);  // after a delay, as a call of control
  void Begin(server::Control& control);
  void TakePart(server::Control& control);
  void PassOn(server::Control& control);
  void DrawMessage();
  void Finish(server::Control& control);

  SimNetwork& network_;
  SimDaemon& daemon_;
  SeededRandom& random_;
  const Checkpoint checkpoint_;
  server::LoadId load_ = 0;
  v1::LoadStateRequest message_;
  int next_in_message_ = 0;
  std::size_t keys_sent_ = 0, pieces_sent_ = 0;
  std::map<std::uint32_t, std::shared_ptr<SimLoadRelay>> relays_;  // by rack
  bool checked_ = false;
  std::string mistake_;
};

}  // namespace phub::sim
