// Sockets for datagrams to and from aggregators that sum (docs/aggregation.md), one for each lane.
#pragma once

#include <string>
#include <vector>

#include "client/session/daemon_link.h"
#include "common/aggregation/datagram_socket.h"

namespace phub::client {

class SumSockets {
 public:
  // Opens them if some daemon of the rack may have the job's gradients summed. The address is the
  // one from which this host reaches the daemon, since the aggregator is near it. Without sockets
  // gradients go over tcp; the reason is logged. Blocks while names are resolved.
  void Open(const DaemonLinks& links);

  // For EngineConfig; empty without sockets. Valid as long as this object.
  std::vector<aggregation::DatagramSocket*> list();
  // [lane]: "10.0.0.5:40112". Empty without sockets.
  std::vector<std::string> endpoints() const;

 private:
  std::vector<aggregation::DatagramSocket> sockets_;  // [lane]
};

}  // namespace phub::client
