// Lets the shared-memory listener ask control which processes of this host get lanes and memory.
// Runs on the listener's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/transport/shm/shm_gate.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

class ControlSharedMemoryGate final : public transport::ShmGate {
 public:
  // transport_index: which of every core loop's transports serves the listener's connections. The
  // thread must outlive the gate.
  ControlSharedMemoryGate(ControlThread& thread, std::uint8_t transport_index);

  wire::LaneRefusal Admit(const wire::LaneHello& hello,
                          const transport::PeerCredentials& credentials) override;
  absl::StatusOr<transport::LaneMemory> Memory(const wire::LaneHello& hello) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string peer_address) override;
  wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request,
                               const transport::PeerCredentials& credentials,
                               transport::BatchMemory& memory) override;

 private:
  ControlThread& thread_;
  const std::uint8_t transport_index_;
};

}  // namespace phub::server
