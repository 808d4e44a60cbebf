// Connects the control planes of simulated racks, as server/control/rpc/peer_links.h does over
// gRPC: envelopes, repeated until there is a receipt, heartbeats, and dialled lanes. Calls are
// sometimes lost, on the way there or back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "server/control/racks/peer_network.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimPeerNetwork final : public server::PeerNetwork {
 public:
  // The peer network of daemons[self]. `daemons` has all racks' daemons, `per_rack` of each, those
  // of rack 0 first. They must outlive the run.
  SimPeerNetwork(SimNetwork& network, SeededRandom& random, const SimRack& daemons,
                 std::uint32_t self, std::uint32_t per_rack);

  void Start();  // starts heartbeats

  server::DroppedMessages Send(server::RackIndex to, const server::PeerSender& sender,
                               server::SharedPeerMessage message) override;
  void DialLane(server::PeerLaneCall call) override;

  // Calls `note` with each plan for a group that this daemon sends.
  using NotesPlan = std::function<void(std::uint64_t incarnation, const v1::GroupSpec& group,
                                       const std::string& plan)>;
  void SetPlanNote(NotesPlan note) { note_plan_ = std::move(note); }

  // Envelopes sent again because there was no receipt.
  std::uint64_t repeated() const { return repeated_; }

 private:
  struct Link {
    server::PeerQueue queue;
    std::uint64_t turn = 0;  // events scheduled in an earlier turn are void
    bool under_way = false;
  };

  SimDaemon& self() const { return *daemons_[self_]; }
  // The daemon with this daemon's number in another rack.
  SimDaemon& DaemonOf(server::RackIndex rack) const {
    return *daemons_[rack.value * per_rack_ + self_ % per_rack_];
  }
  DurationNs DrawDelay();
  void After(DurationNs delay, std::function<void()> what);
  void DeliverAfter(server::RackIndex to, DurationNs delay);
  void Deliver(server::RackIndex to);
  void Arrive(server::RackIndex to, std::uint64_t turn, const v1::PeerEnvelope& envelope);
  // Ends the call, with a receipt or without.
  void Finish(server::RackIndex to, std::uint64_t turn, std::uint64_t taken,
              const std::optional<v1::PeerReceipt>& receipt);
  void Dial(server::RackIndex to, const wire::LaneHello& hello);

  SimNetwork& network_;
  SeededRandom& random_;
  const SimRack& daemons_;
  const std::uint32_t self_;
  const std::uint32_t per_rack_;
  std::vector<Link> links_;  // by rack; the own rack's is unused
  std::uint64_t repeated_ = 0;
  NotesPlan note_plan_;
};

}  // namespace phub::sim
