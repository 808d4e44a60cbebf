// Lets the data port ask control which queue pairs become lanes, and keeps what jobs have on RDMA
// devices: a protection domain for each device that a job has lanes on, in which its parameters are
// registered.
//
// Registering pins every page, which takes a second for some GiB: a thread of its own does it, in
// order, and lets go of what jobs had. Nobody who holds Control's lock waits for it; whoever added
// the keys is answered once it is done, and until then replies are copied on their way. A job's
// memory is its tenant's until it was let go of.
//
// Calls come from the listener's threads, and with Control's lock held (the memory listener's);
// jobs and their domains are looked up under that lock only. The queue of work has a lock of its
// own, inside which nothing else is locked.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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
  ~ControlVerbsGate() override;  // what waits to be registered is dropped

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) override;
  absl::StatusOr<transport::VerbsLaneParts> Parts(const wire::LaneHello& hello) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string description) override;

  DoneFlag OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes,
                        std::shared_ptr<const void> owner) override;
  DoneFlag OnReleased(Incarnation incarnation) override;

 private:
  using Domain = std::shared_ptr<transport::VerbsDomain>;
  struct Parameters {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<const void> owner;
  };
  // What a job sends replies from, and where it is registered.
  struct JobMemory {
    std::vector<Parameters> parameters;
    std::map<const transport::VerbsDevice*, Domain> domains;
    std::shared_ptr<std::atomic<bool>> released = std::make_shared<std::atomic<bool>>(false);
  };
  // To be registered; or, without a domain, to be let go.
  struct Work {
    Domain domain;
    Parameters parameters;
    std::shared_ptr<const std::atomic<bool>> released;  // of the job: then it is not worth it
    std::shared_ptr<std::atomic<bool>> done;            // set at the end, if there is one
    std::shared_ptr<const JobMemory> ended;
  };

  absl::StatusOr<Domain> DomainOf(Incarnation incarnation,
                                  const std::shared_ptr<const transport::VerbsDevice>& device);
  void Add(Work work);
  void Attend();
  void Register(const Work& work);

  ControlThread& thread_;
  const std::uint8_t transport_index_;
  const std::vector<std::shared_ptr<transport::VerbsQueue>> queues_;  // [core]
  const transport::VerbsLimits limits_;
  std::map<Incarnation, JobMemory> jobs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;  // under mutex_
  bool stopping_ = false;  // under mutex_
  std::thread registrar_;
};

}  // namespace phub::server
