// The reconnecting thread of RackWatch. Streams are opened again under every policy, lanes only
// under policy wait.
#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "client/session/fault_text.h"
#include "client/session/rack_watch.h"
#include "common/base/backoff.h"
#include "common/base/log.h"

namespace phub::client {
namespace {

// Pause between attempts. Starts short to reopen a lane quickly, and grows so that a daemon that is
// gone for long is not flooded. A heartbeat must get through within liveness_timeout, so several
// attempts fit into it. Pauses are random, since an outage hits all workers at once.
constexpr DurationNs kPauseMin = 50 * kMillisecond;
constexpr DurationNs kPauseMax = kSecond;
constexpr int kPausesPerTimeout = 4;

}  // namespace

// A random time from half of the pause to the whole one.
DurationNs RackWatch::Jitter(DurationNs pause) {
  return Jittered(std::max(pause, kPauseMin), random_);
}

bool RackWatch::NeedsRecovery(const Watched& watched) const {
  if (watched.must_reconnect || !watched.attended) return true;
  if (watched.lost_at != 0) return false;  // the stream is open again, but had no event yet
  if (!settings_.wait) return false;
  const auto first = lane_watches_.begin() + watched.link.first_lane;
  return std::any_of(first, first + watched.link.lane_count(),
                     [](const LaneWatch& lane) { return lane.lost_at != 0; });
}

RackWatch::Watched* RackWatch::NextToRecover(TimeNs now, DurationNs& wait) {
  wait = liveness_timeout_;
  if (over()) return nullptr;
  for (const std::unique_ptr<Watched>& watched : watched_) {
    if (!NeedsRecovery(*watched)) continue;
    if (watched->next_attempt <= now) return watched.get();
    wait = std::min(wait, watched->next_attempt - now);
  }
  return nullptr;
}

void RackWatch::Recover() {
  pthread_setname_np(pthread_self(), "phub-reconnect");
  std::unique_lock lock(mutex_);
  AwaitStart(lock);
  while (!quit_) {
    const TimeNs now = clock_.Now();
    DurationNs wait = 0;
    Watched* const watched = NextToRecover(now, wait);
    if (watched == nullptr) {
      changed_.wait_for(lock, std::chrono::nanoseconds(wait));
      continue;
    }
    const DurationNs longest =
        std::clamp(liveness_timeout_ / kPausesPerTimeout, kPauseMin, kPauseMax);
    watched->pause = std::clamp(watched->pause * 2, kPauseMin, longest);
    watched->next_attempt = now + Jitter(watched->pause);
    const bool control_lost = watched->must_reconnect || !watched->attended;
    lock.unlock();
    if (control_lost)
      RecoverControl(*watched);  // the stream reports the result
    else if (RecoverLanes(*watched)) {
      lock.lock();
      watched->pause = 0;
      continue;
    }
    lock.lock();
  }
}

void RackWatch::RecoverControl(Watched& watched) {
  bool dead_end = false;
  {
    const std::lock_guard lock(mutex_);
    dead_end = watched.must_reconnect && watched.attended;
  }
  if (dead_end) watched.link.channel->Reconnect();  // closes the stream: OnAttendClosed()
  Attend(watched);
}

bool RackWatch::RecoverLanes(Watched& watched) {
  const DaemonLink& link = watched.link;
  std::vector<std::uint32_t> lost;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t lane = link.first_lane; lane < link.first_lane + link.lane_count(); ++lane)
      if (lane_watches_[lane].lost_at != 0) lost.push_back(lane);
  }
  // The same timeout as for a silent daemon.
  const DurationNs timeout =
      std::min<DurationNs>(settings_.call_timeout, link.joined.liveness_timeout_ns());
  const absl::Status status = lanes_.Open(
      link, lost, timeout,
      [this](std::uint32_t lane, std::uint8_t index, transport::Connection& connection) {
        {
          // Before OnLaneOpened(): the lane may close again immediately.
          const std::lock_guard lock(mutex_);
          lane_watches_[lane].lost_at = 0;
          lane_watches_[lane].opened_at = clock_.Now();
        }
        owner_.OnLaneOpened(lane, index, connection);
      });
  if (status.ok()) return true;
  if (over()) return false;
  LogWarning("event=lane_not_reopened job={} rank={} daemon={} error=\"{}\"", settings_.job,
             settings_.rank, link.endpoint.ToString(), std::string(status.message()));
  if (absl::IsNotFound(status))
    owner_.OnVerdict(SessionUnknown(link.endpoint, settings_.job, settings_.rank), {}, link);
  return false;
}

}  // namespace phub::client
