#include "server/control/ports/control_thread.h"

#include <algorithm>

#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/shortage.h"

namespace phub::server {
namespace {

// A turn should take less than a millisecond. Longer ones are in phub_control_lock_seconds; these
// are logged as well, because everyone notices them.
constexpr DurationNs kSlowTurn = 50 * kMillisecond;
constexpr DurationNs kSlowLogInterval = kSecond;
// Control that does not answer for so long is counted (phub_control_stalls_total).
constexpr DurationNs kStall = 3 * kSecond;

}  // namespace

ControlThread::ControlThread(Control& control, const Clock& clock)
    : control_(control), clock_(clock) {}

ControlThread::~ControlThread() { Stop(); }

absl::Status ControlThread::Start() {
  if (absl::Status status = doorbell_.status(); !status.ok()) return status;
  return StartThread(thread_, "control", [this] { Loop(); });
}

void ControlThread::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  doorbell_.Ring();
  thread_.join();
}

ControlThread::Settle::~Settle() {
  deferred_.swap(thread_.deferred_);
  if (thread_.control_.NextDeadline() < thread_.sleeping_until_) {
    thread_.due_at_ = std::min(thread_.due_at_.load(), thread_.clock_.Now());
    thread_.doorbell_.Ring();
  }
  thread_.NoteTurn(turn_, begun_at_);
  thread_.held_since_ = kNobody;
}

DurationNs ControlThread::SilentFor() const {
  const TimeNs since = std::min(held_since_.load(), due_at_.load());
  const TimeNs now = clock_.Now();
  return since < now ? now - since : 0;
}

void ControlThread::NoteTurn(Turn turn, TimeNs begun_at) {
  const TimeNs now = clock_.Now();
  const DurationNs held = now - begun_at;
  control_.turns().NoteHeld(turn.kind, held);
  if (held >= kStall) {
    control_.counters().Add(ControlCounter::control_stalls);
    stall_counted_ = true;
  }
  if (held < kSlowTurn || now < slow_silent_until_) return;
  slow_silent_until_ = now + kSlowLogInterval;
  LogWarning("event=control_slow by={} call={} held_ms={}",
             kTurnKindNames[static_cast<std::size_t>(turn.kind)], turn.name, held / kMillisecond);
}

void ControlThread::RunDeferred(Deferred& deferred) {
  for (const std::function<void()>& function : deferred) function();
}

void ControlThread::Loop() {
  NameThisThread("control");
  constexpr TimeNs kAwake = std::numeric_limits<TimeNs>::min();
  Waiter waiter;
  waiter.Add(doorbell_.descriptor());
  for (;;) {
    Deferred deferred;
    TimeNs until = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      const OnControl on_control;
      const TimeNs begun_at = clock_.Now();
      if (begun_at - std::min(due_at_.load(), begun_at) >= kStall && !stall_counted_)
        control_.counters().Add(ControlCounter::control_stalls);
      stall_counted_ = false;
      held_since_ = begun_at;
      control_.Poll();
      deferred.swap(deferred_);
      until = control_.NextDeadline();
      sleeping_until_ = until;
      due_at_ = until;
      NoteTurn({TurnKind::kPoll, ""}, begun_at);
      held_since_ = kNobody;
    }
    RunDeferred(deferred);
    const TimeNs now = clock_.Now();
    if (until == std::numeric_limits<TimeNs>::max()) {
      waiter.Wait(-1);
    } else if (until > now) {
      waiter.Wait(until - now + kMillisecond - 1);  // rounded up: waking early would spin
    }
    due_at_ = std::min(due_at_.load(), clock_.Now());
    {
      const std::lock_guard lock(mutex_);
      sleeping_until_ = kAwake;
    }
    // Cleared before the next Poll, so that a ring during or after Poll wakes the thread again.
    doorbell_.Clear();
  }
}

}  // namespace phub::server
