// Sits in front of the gate of the data port's listener: passes the lanes of probes to the prober
// and all others to that gate. Runs on the listener's thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/transport/tcp/lane_gate.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/prober.h"

namespace phub::server {

class ProbeGate final : public transport::LaneGate {
 public:
  // All must outlive it. tls: the listener's lanes use TLS.
  ProbeGate(transport::LaneGate& others, Prober& prober, ControlThread& thread, bool tls);

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) override;
  bool FindNonce(const wire::LaneHello& hello, wire::Nonce& nonce) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string peer_address) override;

 private:
  transport::LaneGate& others_;
  Prober& prober_;
  ControlThread& thread_;
  const bool tls_;
};

}  // namespace phub::server
