// The transport of one simulated node: the framing of every byte-stream transport over the pipes of
// a SimNetwork. descriptor() is -1, since there is nothing to block on. Arm() returns whether
// events are pending. If no node has any, the simulation advances time.
#pragma once

#include "common/transport/stream/stream_transport.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimTransport final : public transport::StreamTransport {
 public:
  // The network must outlive the transport.
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
