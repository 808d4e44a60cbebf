#include "server/transports/verbs/verbs_gate.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "server/control/lanes/lanes.h"
#include "server/control/lanes/rank_memories.h"

namespace phub::server {

transport::VerbsLimits PeerVerbsLimits(transport::VerbsLimits limits) {
  limits.inbox_bytes = wire::kInboxBytesMax;
  return limits;
}

ControlVerbsGate::ControlVerbsGate(ControlThread& thread, std::uint8_t transport_index,
                                   std::vector<std::shared_ptr<transport::VerbsQueue>> queues,
                                   const transport::VerbsLimits& limits)
    : thread_(thread),
      transport_index_(transport_index),
      queues_(std::move(queues)),
      limits_(limits),
      started_(StartThread(registrar_, "rdma-memory", [this] { Attend(); })) {}

ControlVerbsGate::~ControlVerbsGate() {
  work_->Stop();
  if (registrar_.joinable()) registrar_.join();
}

// ---- Lanes -------------------------------------------------------------------------------------

wire::LaneRefusal ControlVerbsGate::Admit(const wire::LaneHello& hello,
                                          std::string_view peer_address) {
  bool logs = false;
  const wire::LaneRefusal refusal = thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) {
    const wire::LaneRefusal result = control.lanes().AdmitLane(hello);
    logs = result != wire::LaneRefusal::kNone &&
           control.lanes().MayLogRefusalOf(net::AddressBlock(peer_address));
    return result;
  });
  if (logs) {
    LogWarning("event=lane_refused transport=verbs reason={} rank={} core={} peer={}",
               wire::ToString(refusal), hello.rank.value, hello.core.value, peer_address);
  }
  return refusal;
}

absl::StatusOr<transport::VerbsLaneParts> ControlVerbsGate::Parts(const wire::LaneHello& hello) {
  using Parts = absl::StatusOr<transport::VerbsLaneParts>;
  return thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) -> Parts {
    absl::StatusOr<LaneStaging> staging = control.rank_memories().StagingOf(hello);
    if (!staging.ok()) return staging.status();
    const std::shared_ptr<transport::VerbsQueue>& queue = queues_[hello.core.value];
    if (queue->lost()) {
      return absl::UnavailableError(
          fmt::format("RDMA device {} was lost; restart phubd once the device is available again",
                      queue->device()->name()));
    }
    auto domain = DomainOf(hello.incarnation, queue->device());
    if (!domain.ok()) return domain.status();
    const bool to_rack = LaneOwner::OfHello(hello.rank).is_rack();
    if (to_rack) jobs_[hello.incarnation].cores_with_peers.insert(hello.core);
    return transport::VerbsLaneParts{.queue = queue,
                                     .domain = *std::move(domain),
                                     .staging = {.data = staging->data,
                                                 .slot_count = staging->slot_count,
                                                 .slot_bytes = staging->slot_bytes,
                                                 .owner = staging->owner},
                                     .limits = to_rack ? PeerVerbsLimits(limits_) : limits_};
  });
}

absl::StatusOr<ControlVerbsGate::Domain> ControlVerbsGate::DomainOf(
    Incarnation incarnation, const std::shared_ptr<const transport::VerbsDevice>& device) {
  JobMemory& job = jobs_[incarnation];
  Domain& known = job.domains[device.get()];
  if (known != nullptr) return known;
  auto made =
      transport::VerbsDomain::Create(device,
                                     "add keys in larger batches: each batch takes one or two "
                                     "regions, and one more per core loop if the job spans racks");
  if (!made.ok()) return made.status();
  // The last holder does not wait for the domain to be unpinned: the gate's thread destroys it.
  transport::VerbsDomain* const domain = made->get();
  known = Domain(domain, [work = work_, end = job.end, held = *std::move(made)](auto*) mutable {
    work->Add({.end = std::move(end), .unwanted = std::move(held)});
  });
  for (const Parameters& parameters : job.parameters) {
    work_->Add({.end = job.end, .domain = known, .parameters = parameters});
  }
  return known;
}

void ControlVerbsGate::Attach(const wire::LaneHello& hello,
                              std::unique_ptr<transport::Connection> connection,
                              std::string description) {
  thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) {
    control.lanes().AttachLane(hello, std::move(connection), transport_index_, "verbs",
                               description);
  });
}

// ---- Memory ------------------------------------------------------------------------------------

DoneFlag ControlVerbsGate::OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes,
                                        std::shared_ptr<const void> owner) {
  JobMemory& job = jobs_[incarnation];
  job.parameters.push_back({.data = data, .bytes = bytes, .owner = std::move(owner)});
  std::vector<Domain> domains;
  for (const auto& [device, domain] : job.domains) {
    if (domain != nullptr) domains.push_back(domain);
  }
  if (domains.empty()) return nullptr;
  auto done = std::make_shared<std::atomic<bool>>(false);
  // Work is done in order, so the last item is done when all are.
  for (const Domain& domain : domains) {
    work_->Add({.end = job.end,
                .domain = domain,
                .parameters = job.parameters.back(),
                .done = domain == domains.back() ? done : nullptr});
  }
  return done;
}

// Lanes to other racks are open before there are keys.
DoneFlag ControlVerbsGate::OnSums(Incarnation incarnation, CoreIndex core, std::byte* data,
                                  std::size_t bytes, std::shared_ptr<const void> owner) {
  const auto job = jobs_.find(incarnation);
  if (job == jobs_.end() || !job->second.cores_with_peers.contains(core)) return nullptr;
  const auto domain = job->second.domains.find(queues_[core.value]->device().get());
  if (domain == job->second.domains.end() || domain->second == nullptr) return nullptr;
  auto done = std::make_shared<std::atomic<bool>>(false);
  work_->Add({.end = job->second.end,
              .domain = domain->second,
              .parameters = {.data = data, .bytes = bytes, .owner = std::move(owner)},
              .done = done});
  return done;
}

// On the gate's thread, since unpinning takes as long as pinning.
DoneFlag ControlVerbsGate::OnReleased(Incarnation incarnation) {
  const auto job = jobs_.find(incarnation);
  if (job == jobs_.end()) return nullptr;
  auto ended = std::make_shared<const JobMemory>(std::move(job->second));
  jobs_.erase(job);
  ended->end->released.store(true);
  DoneFlag let_go = ended->end->let_go;
  work_->Add({.unwanted = std::move(ended)});
  return let_go;
}

void ControlVerbsGate::Attend() {
  NameThisThread("rdma-memory");
  for (;;) {
    {
      Work work;
      if (!work_->Take(work)) return;
      if (work.domain != nullptr && !work.end->released.load()) Register(work);
      if (work.done != nullptr) work.done->store(true);
    }  // destroys the work item and what it holds
    thread_.doorbell().Ring();
  }
}

// Data in memory that is not registered is copied before it is sent, and counted. The job can go
// on.
void ControlVerbsGate::Register(const Work& work) {
  const auto& [data, bytes, owner] = work.parameters;
  const auto index = work.domain->Add(data, bytes, transport::RegisteredMemory::Use::kSend, owner);
  if (index.ok()) return;
  LogWarning("event=parameters_not_registered device={} bytes={} reason=\"{}\"",
             work.domain->device().name(), bytes, MessageOf(index.status()));
}

// ---- The queue ---------------------------------------------------------------------------------

// Nothing is destroyed under the lock, since destroying a domain may add work.
void ControlVerbsGate::WorkQueue::Add(Work work) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  work_.push_back(std::move(work));
  changed_.notify_one();
}

bool ControlVerbsGate::WorkQueue::Take(Work& work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
  if (stopping_) return false;
  work = std::move(work_.front());
  work_.pop_front();
  return true;
}

void ControlVerbsGate::WorkQueue::Stop() {
  std::deque<Work> dropped;
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  dropped.swap(work_);
  changed_.notify_one();
}

}  // namespace phub::server
