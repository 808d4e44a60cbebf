// The transport of one simulated node: the framing of every byte-stream transport over the pipes
// of a SimNetwork. descriptor() is -1: nothing to block on; Arm() tells whether something is
// pending, and when every node's says no, the simulation moves time on.
#pragma once

#include "common/transport/stream/stream_transport.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimTransport final : public transport::StreamTransport {
 public:
  // The network outlives the transport.
  explicit SimTransport(SimNetwork& network, std::uint32_t connections_max = 64,
                        std::size_t linger_bytes = 0)
      : StreamTransport(connections_max, linger_bytes), network_(network) {}
  ~SimTransport() override { network_.Detach(this); }

  int descriptor() const override { return -1; }

 protected:
  void CollectReadiness() override {}  // the network marks connections as events happen
  bool Watch(transport::StreamConnection& connection, transport::ConnectionId id) override;
  void Unwatch(transport::StreamConnection& connection) override;

 private:
  friend class SimNetwork;
  SimNetwork& network_;
};

}  // namespace phub::sim
