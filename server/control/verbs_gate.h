// Lets the data port ask control which queue pairs become lanes, and keeps what jobs have on RDMA
// devices: a protection domain for each device that a job has lanes on, in which its parameters are
// registered.
//
// Calls come from the listener's thread, and with Control's lock held (the memory listener's);
// domains are touched under that lock only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/verbs/verbs_gate.h"
#include "server/control/control.h"
#include "server/control/control_thread.h"

namespace phub::server {

class ControlVerbsGate final : public transport::VerbsGate, public JobMemoryListener {
 public:
  // queues: of every core loop's transport, which has number transport_index there. The thread
  // outlives the gate.
  ControlVerbsGate(ControlThread& thread, std::uint8_t transport_index,
                   std::vector<std::shared_ptr<transport::VerbsQueue>> queues,
                   const transport::VerbsLimits& limits);

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) override;
  absl::StatusOr<transport::VerbsLaneParts> Parts(const wire::LaneHello& hello) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string description) override;

  void OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes) override;
  void OnReleased(Incarnation incarnation) override;

 private:
  // What a job sends replies from, and where it is registered.
  struct JobMemory {
    std::vector<std::pair<std::byte*, std::size_t>> parameters;
    std::map<std::string, std::shared_ptr<transport::VerbsDomain>> domains;  // by device
  };
  absl::StatusOr<std::shared_ptr<transport::VerbsDomain>> DomainOf(
      Incarnation incarnation, const std::shared_ptr<const transport::VerbsDevice>& device);

  ControlThread& thread_;
  const std::uint8_t transport_index_;
  const std::vector<std::shared_ptr<transport::VerbsQueue>> queues_;  // [core]
  const transport::VerbsLimits limits_;
  std::map<Incarnation, JobMemory> jobs_;
};

}  // namespace phub::server
