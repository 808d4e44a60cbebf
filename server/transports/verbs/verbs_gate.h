// Lets the data port ask control which queue pairs become lanes, and provides the resources of
// lanes, including those to other racks. Also keeps what jobs have on RDMA devices: a protection
// domain for each device that a job has lanes on. The job's parameters and the sums for other racks
// are registered in it.
//
// Registration pins every page, which takes about a second for some GiB. A separate thread
// registers and unregisters memory, in order, so that no thread waits for it while holding
// Control's lock. The call that adds keys is answered once their memory is registered; until then
// replies are copied before they are sent.
//
// A job's memory stays charged to its tenant until all its registrations are released. Lanes also
// hold a domain, including lanes that are still being set up and that Control does not know yet.
// The separate thread unpins a domain, whichever holder releases it last.
//
// Calls come from the listener's threads, and from the memory listener's callers, which hold
// Control's lock. Jobs and their domains are only looked up under that lock. The work queue has its
// own lock, inside which no other lock is taken.
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

// Between racks, all messages including chunks go through the inbox, so it needs room for several.
transport::VerbsLimits PeerVerbsLimits(transport::VerbsLimits limits);

class ControlVerbsGate final : public transport::VerbsGate, public JobMemoryListener {
 public:
  // queues: one per core loop, for the transport with number transport_index there. The thread must
  // outlive the gate.
  ControlVerbsGate(ControlThread& thread, std::uint8_t transport_index,
                   std::vector<std::shared_ptr<transport::VerbsQueue>> queues,
                   const transport::VerbsLimits& limits);
  ~ControlVerbsGate() override;  // drops registrations that are still waiting
  // An error if the process lacks threads. Check it before the first lane.
  const absl::Status& started() const { return started_; }

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
  // Everything of a job holds a reference. The gate's thread releases the last one and then rings
  // the doorbell.
  struct JobEnd {
    ~JobEnd() { let_go->store(true); }
    std::atomic<bool> released{false};  // the job has ended: skip further registrations
    const std::shared_ptr<std::atomic<bool>> let_go = std::make_shared<std::atomic<bool>>(false);
  };
  // Memory from which a job sends replies, and the domains in which it is registered.
  struct JobMemory {
    std::shared_ptr<JobEnd> end = std::make_shared<JobEnd>();  // destroyed after the other members
    std::vector<Parameters> parameters;
    std::map<const transport::VerbsDevice*, Domain> domains;
    std::set<CoreIndex> cores_with_peers;  // cores that have lanes to other racks
  };
  // Memory to be registered; or, without a domain, something to be released.
  struct Work {
    std::shared_ptr<JobEnd> end = nullptr;  // destroyed after the other members
    Domain domain = nullptr;
    Parameters parameters = {};
    std::shared_ptr<std::atomic<bool>> done = nullptr;  // may be null; set when the work is done
    std::shared_ptr<const void> unwanted = nullptr;
  };
  // Domains that others hold keep the queue alive after the gate is gone; work added then is
  // destroyed at once.
  class WorkQueue {
   public:
    void Add(Work work);
    bool Take(Work& work);  // waits for work; false: stopped
    void Stop();            // drops waiting work

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
  const absl::Status started_;  // of registrar_
};

}  // namespace phub::server
