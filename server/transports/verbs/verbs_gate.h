// Lets the data port ask control which queue pairs become lanes, says what those to other racks are
// made of at either end, and keeps what jobs have on RDMA devices: a protection domain for each
// device that a job has lanes on, in which its parameters are registered, and the sums that go to
// other racks.
//
// Registering pins every page, which takes a second for some GiB: a thread of its own does it, in
// order, and lets go of what jobs had. Nobody who holds Control's lock waits for it; whoever added
// the keys is answered once it is done, and until then replies are copied on their way. A job's
// memory is its tenant's until it was let go of: by lanes, too, of which some are no lanes yet, and
// unknown to Control. Whoever lets go of a domain last, it is unpinned by that thread.
//
// Calls come from the listener's threads, and with Control's lock held (the memory listener's);
// jobs and their domains are looked up under that lock only. The queue of work has a lock of its
// own, inside which nothing else is locked.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/verbs/verbs_gate.h"
#include "server/control/jobs/memory_listener.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

// Between racks every message goes through the inbox, chunks too: room for several.
transport::VerbsLimits PeerVerbsLimits(transport::VerbsLimits limits);

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
  DoneFlag OnSums(Incarnation incarnation, CoreIndex core, std::byte* data, std::size_t bytes,
                  std::shared_ptr<const void> owner) override;
  DoneFlag OnReleased(Incarnation incarnation) override;

 private:
  using Domain = std::shared_ptr<transport::VerbsDomain>;
  struct Parameters {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<const void> owner;
  };
  // Held with whatever is of the job; at last by the gate's thread, which rings the bell.
  struct JobEnd {
    ~JobEnd() { let_go->store(true); }
    std::atomic<bool> released{false};  // nothing more is worth being registered
    const std::shared_ptr<std::atomic<bool>> let_go = std::make_shared<std::atomic<bool>>(false);
  };
  // What a job sends replies from, and where it is registered.
  struct JobMemory {
    std::shared_ptr<JobEnd> end = std::make_shared<JobEnd>();  // the last member to go
    std::vector<Parameters> parameters;
    std::map<const transport::VerbsDevice*, Domain> domains;
    std::set<CoreIndex> cores_with_peers;  // they have lanes to other racks
  };
  // To be registered; or, without a domain, to be let go.
  struct Work {
    std::shared_ptr<JobEnd> end = nullptr;  // the last member to go
    Domain domain = nullptr;
    Parameters parameters = {};
    std::shared_ptr<std::atomic<bool>> done = nullptr;  // set at the end, if there is one
    std::shared_ptr<const void> unwanted = nullptr;
  };
  // Outlives the gate in the domains that others have: what is added then, is let go at once.
  class WorkQueue {
   public:
    void Add(Work work);
    bool Take(Work& work);  // waits; false: it is over
    void Stop();            // what waits is dropped

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> work_;
    bool stopping_ = false;
  };

  absl::StatusOr<Domain> DomainOf(Incarnation incarnation,
                                  const std::shared_ptr<const transport::VerbsDevice>& device);
  void Attend();
  void Register(const Work& work);

  ControlThread& thread_;
  const std::uint8_t transport_index_;
  const std::vector<std::shared_ptr<transport::VerbsQueue>> queues_;  // [core]
  const transport::VerbsLimits limits_;
  std::map<Incarnation, JobMemory> jobs_;
  const std::shared_ptr<WorkQueue> work_ = std::make_shared<WorkQueue>();
  std::thread registrar_;
};

}  // namespace phub::server
