#include "client/session/engine_thread.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/aggregation/datagram_socket.h"
#include "common/base/idle_yields.h"
#include "common/base/shortage.h"
#include "common/simd/kernels.h"

namespace phub::client {
namespace {

// A yield costs 1 us if a core is free; a blocking wake costs 25 us. With fewer yields, small
// exchanges with more workers than cores sleep at every step (bench/NOTES.md).
constexpr std::uint32_t kYieldsBeforeSleep = 16;
// A yield that took this long ran another thread, so no core is idle: stop yielding.
constexpr DurationNs kYieldToOthers = 20 * kMicrosecond;
// A safety net only: every event wakes the thread, and keep-alives have a timer.
constexpr DurationNs kSleepMax = 500 * kMillisecond;

std::vector<transport::Transport*> ListOf(
    const std::vector<std::unique_ptr<transport::Transport>>& owned) {
  std::vector<transport::Transport*> list;
  for (const auto& transport : owned) list.push_back(transport.get());
  return list;
}

}  // namespace

EngineThread::EngineThread(const EngineConfig& config, const Clock& clock, EngineListener& listener,
                           std::vector<std::unique_ptr<transport::Transport>> transports)
    : clock_(clock),
      owned_(std::move(transports)),
      transports_(ListOf(owned_)),
      engine_(config, clock_, transports_, listener),
      computes_(!config.sum_sockets.empty()) {
  waiter_.Add(doorbell_.descriptor());
  for (const transport::Transport* transport : transports_) waiter_.Add(transport->descriptor());
  for (const aggregation::DatagramSocket* socket : config.sum_sockets) {
    waiter_.Add(socket->descriptor());
  }
}

EngineThread::~EngineThread() { Quit(); }

absl::Status EngineThread::Start() {
  if (absl::Status status = doorbell_.status(); !status.ok()) return status;
  if (!engine_.has_memory()) return MemoryShortage("map the memory of lanes", ENOMEM);
  return StartThread(thread_, "phub-engine", [this] { Run(); });
}

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
  // This thread inherits the mode of the program's, which may flush denormals.
  if (computes_) simd::SetFloatingPointMode();
  IdleYields yields(kYieldsBeforeSleep);
  while (!quit_.load(std::memory_order_acquire)) {
    if (engine_.RunOnce()) {
      yields.Worked();
    } else if (Linger()) {
      continue;
    } else if (yields.Take()) {
      const TimeNs before = clock_.Now();
      std::this_thread::yield();
      if (clock_.Now() - before >= kYieldToOthers) yields.Forgo();
    } else {
      const TimeNs before = clock_.Now();
      Sleep(nullptr, 0);
      yields.Slept(clock_.Now() - before);
    }
  }
}

bool EngineThread::Linger() {
  const TimeNs now = clock_.Now();
  for (transport::Transport* transport : transports_) {
    const DurationNs linger = transport->TakeLinger(now);
    if (linger == 0) continue;
    Sleep(transport, linger);
    return true;
  }
  return false;
}

void EngineThread::Sleep(const transport::Transport* lingering, DurationNs linger) {
  engine_.AwaitReplies();
  sleeping_.exchange(true, std::memory_order_acq_rel);
  const bool nothing_to_do = engine_.CommandsEmpty() && !quit_.load(std::memory_order_acquire) &&
                             std::all_of(transports_.begin(), transports_.end(),
                                         [lingering](transport::Transport* transport) {
                                           return transport == lingering || transport->Arm();
                                         });
  if (nothing_to_do) {
    const DurationNs longest = lingering != nullptr ? linger : kSleepMax;
    waiter_.Wait(std::clamp<DurationNs>(engine_.NextTimer() - clock_.Now(), 0, longest),
                 lingering != nullptr ? lingering->descriptor() : -1);
  }
  sleeping_.exchange(false, std::memory_order_acq_rel);
  // A submitter that saw the flag may ring late. The next sleep then ends at once and clears it.
  if (nothing_to_do && waiter_.IsReadable(doorbell_.descriptor())) doorbell_.Clear();
}

}  // namespace phub::client
