#include "client/session/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "client/session/rack_lanes.h"
#include "common/base/idle_yields.h"

namespace phub::client {
namespace {

// A yield costs a microsecond where a core is free, a blocking wake 25. Fewer than these, and small
// exchanges of more workers than cores fall into sleeping at every step (bench/NOTES.md).
constexpr std::uint32_t kYieldsBeforeSleep = 16;
// One that took so long let somebody else work: there is no idle core to wait on.
constexpr DurationNs kYieldToOthers = 20 * kMicrosecond;
// Nothing depends on it: every event wakes the thread.
constexpr DurationNs kSleepMax = 500 * kMillisecond;
// One that is open, and one that was replaced and is still being forgotten.
constexpr std::uint32_t kConnectionsPerLane = 2;
static_assert(kTcpTransportIndex == 0 && kShmTransportIndex == 1 && kVerbsTransportIndex == 2,
              "as EngineThread has them");

std::vector<transport::Transport*> ListOf(transport::Transport& tcp, transport::Transport& shm,
                                          transport::Transport* verbs) {
  std::vector<transport::Transport*> list{&tcp, &shm};
  if (verbs != nullptr) list.push_back(verbs);
  return list;
}

}  // namespace

EngineThread::EngineThread(const EngineConfig& config, const Clock& clock, EngineListener& listener,
                           std::vector<std::shared_ptr<transport::VerbsQueue>> verbs_queues)
    : clock_(clock),
      tcp_(kConnectionsPerLane * config.lane_count,
           transport::LingerBytes(std::size_t{config.slots_per_lane} * config.chunk_bytes)),
      shm_(kConnectionsPerLane * config.lane_count),
      verbs_(verbs_queues.empty()
                 ? nullptr
                 : std::make_unique<transport::VerbsTransport>(
                       std::move(verbs_queues), kConnectionsPerLane * config.lane_count)),
      transports_(ListOf(tcp_, shm_, verbs_.get())),
      engine_(config, clock_, transports_, listener) {
  waiter_.Add(doorbell_.descriptor());
  for (const transport::Transport* transport : transports_) waiter_.Add(transport->descriptor());
  thread_ = std::thread([this] { Run(); });
}

EngineThread::~EngineThread() { Quit(); }

void EngineThread::Submit(const Command& command) {
  const std::lock_guard lock(submit_mutex_);
  while (!engine_.Submit(command)) {
    if (quit_.load(std::memory_order_acquire)) return;
    Wake();
    std::this_thread::yield();
  }
  Wake();
}

void EngineThread::Quit() {
  quit_.store(true, std::memory_order_release);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void EngineThread::Wake() {
  if (sleeping_.exchange(false, std::memory_order_acq_rel)) doorbell_.Ring();
}

void EngineThread::Run() {
  pthread_setname_np(pthread_self(), "phub-engine");
  IdleYields yields(kYieldsBeforeSleep);
  while (!quit_.load(std::memory_order_acquire)) {
    if (engine_.RunOnce()) {
      yields.Worked();
    } else if (const DurationNs linger = tcp_.TakeLinger(clock_.Now()); linger > 0) {
      Sleep(linger);
    } else if (yields.Take()) {
      const TimeNs before = clock_.Now();
      std::this_thread::yield();
      if (clock_.Now() - before >= kYieldToOthers) yields.Forgo();
    } else {
      const TimeNs before = clock_.Now();
      Sleep(0);
      yields.Slept(clock_.Now() - before);
    }
  }
}

void EngineThread::Sleep(DurationNs linger) {
  engine_.AwaitReplies();
  sleeping_.exchange(true, std::memory_order_acq_rel);
  const bool nothing_to_do =
      engine_.CommandsEmpty() && !quit_.load(std::memory_order_acquire) &&
      std::all_of(transports_.begin(), transports_.end(),
                  [this, linger](transport::Transport* transport) {
                    return (linger > 0 && transport == &tcp_) || transport->Arm();
                  });
  if (nothing_to_do)
    waiter_.Wait(linger > 0 ? linger : kSleepMax, linger > 0 ? tcp_.descriptor() : -1);
  sleeping_.exchange(false, std::memory_order_acq_rel);
  // A submitter that saw the sleeper may ring late: then the next sleep ends at once, and clears.
  if (nothing_to_do && waiter_.IsReadable(doorbell_.descriptor())) doorbell_.Clear();
}

}  // namespace phub::client
