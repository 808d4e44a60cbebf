#include "server/core_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"
#include "common/simd/kernels.h"

namespace phub::server {
namespace {

// A loop that is not pinned yields at most this often before it blocks. A yield costs 7-10 us if
// another thread needs the core, otherwise well under 1 us; a wakeup costs about 25 us.
constexpr std::uint32_t kYieldsBeforeBlock = 8;
// A blocked loop runs at least this often, for the timers of transports and rounds. Ten runs per
// second do not show in the CPU time of an idle daemon.
constexpr DurationNs kTickInterval = 100 * kMillisecond;
// The same while control has not taken all events: more events may wait for room in the queue, and
// no doorbell rings when there is room.
constexpr DurationNs kTickIntervalWithEvents = kMillisecond;

}  // namespace

CoreThread::CoreThread(CoreLoop& loop, std::span<transport::Transport* const> transports,
                       const Clock& clock, const Doorbell& control_doorbell, Options options)
    : loop_(loop),
      transports_(transports),
      clock_(clock),
      control_doorbell_(control_doorbell),
      options_(options),
      yields_(kYieldsBeforeBlock) {
  waiter_.Add(doorbell_.descriptor());
  for (const transport::Transport* transport : transports_) {
    PHUB_CHECK(transport->descriptor() >= 0, "core={}", loop_.core().value);
    waiter_.Add(transport->descriptor());
  }
  if (options_.wakes >= 0) waiter_.Add(options_.wakes);
}

CoreThread::~CoreThread() { Stop(); }

absl::Status CoreThread::Start() {
  PHUB_CHECK(!thread_.joinable(), "core={} is started twice", loop_.core().value);
  if (absl::Status status = doorbell_.status(); !status.ok()) return status;
  std::promise<absl::Status> started;
  std::future<absl::Status> result = started.get_future();
  const std::string name = fmt::format("core-{}", loop_.core().value);
  const absl::Status begun = StartThread(thread_, name, [this, &started, &name] {
    NameThisThread(name);
    const absl::Status pinned = options_.pin ? PinThisThread(*options_.pin) : absl::OkStatus();
    const bool may_run = pinned.ok();
    started.set_value(pinned);  // `started` may be destroyed after this
    if (!may_run) return;
    try {
      Run();
    } catch (const std::exception& error) {
      PHUB_CHECK(false, "core={} exception={}", loop_.core().value, error.what());
    }
  });
  if (!begun.ok()) return begun;
  absl::Status status = result.get();
  if (!status.ok()) Stop();
  return status;
}

void CoreThread::Stop() {
  stopping_.store(true, std::memory_order_relaxed);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void CoreThread::Run() {
  simd::SetFloatingPointMode();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool worked = loop_.RunOnce();
    RingControl();
    if (!worked && options_.waiting == CorePlan::Waiting::kBlock && Linger()) continue;
    if (!ShouldBlock(worked)) continue;
    const TimeNs before = clock_.Now();
    Block(nullptr, kTickInterval);
    yields_.Slept(clock_.Now() - before);
  }
}

bool CoreThread::ShouldBlock(bool worked) {
  if (worked) {
    is_idle_ = false;
    yields_.Worked();
    return false;
  }
  switch (options_.waiting) {
    case CorePlan::Waiting::kPoll: return false;
    case CorePlan::Waiting::kPollThenBlock: {
      const TimeNs now = clock_.Now();
      if (!std::exchange(is_idle_, true)) idle_since_ = now;
      return now - idle_since_ >= kPollBeforeBlock;
    }
    case CorePlan::Waiting::kBlock:
      if (!yields_.Take()) return true;
      std::this_thread::yield();
      return false;
  }
  return false;
}

// A loop that is not pinned leaves the core to other threads while a burst of data accumulates.
bool CoreThread::Linger() {
  const TimeNs now = clock_.Now();
  for (transport::Transport* transport : transports_) {
    const DurationNs linger = transport->TakeLinger(now);
    if (linger == 0) continue;
    Block(transport, linger);
    return true;
  }
  return false;
}

void CoreThread::Block(const transport::Transport* lingering, DurationNs timeout) {
  for (transport::Transport* transport : transports_)
    if (transport != lingering && !transport->Arm()) return;  // something came meanwhile
  // The doorbell is rung after a push and cleared only here, so a push that this check misses will
  // still ring it.
  CoreQueues& queues = loop_.queues();
  if (!queues.commands.Empty()) return;
  const bool events_wait = !queues.events.Empty();
  loop_.CountBlock();
  const DurationNs interval = events_wait ? std::min(timeout, kTickIntervalWithEvents) : timeout;
  waiter_.Wait(std::clamp<DurationNs>(loop_.NextTimer() - clock_.Now(), 0, interval),
               lingering == nullptr ? -1 : lingering->descriptor());
  if (waiter_.IsReadable(doorbell_.descriptor())) doorbell_.Clear();
}

void CoreThread::RingControl() {
  const std::uint64_t commands_done =
      loop_.counters().commands_done.load(std::memory_order_relaxed);
  const bool acknowledged = commands_done != commands_done_seen_;
  commands_done_seen_ = commands_done;
  // Ring again as long as events wait: the loop does not know whether control has seen the newest
  // one, and events are rare.
  if (acknowledged || !loop_.queues().events.Empty()) control_doorbell_.Ring();
}

}  // namespace phub::server
