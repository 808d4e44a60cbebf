#include "client/session/rack_watch.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <utility>

#include "client/engine.h"
#include "client/session/fault_text.h"
#include "client/session/rack_join.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/rank_list.h"
#include "common/base/shortage.h"

namespace phub::client {
namespace {

// Policy fail: the time in which control must not answer after all lanes were lost.
constexpr DurationNs kDeathGraceMax = 250 * kMillisecond;
constexpr int kDeathGraceFraction = 8;  // of liveness_timeout
// Warnings of a round that is late. Less than the interval of one daemon's notices.
constexpr DurationNs kLateLogInterval = 20 * kSecond;

}  // namespace

RackWatch::RackWatch(RackWatchSettings settings, const DaemonLinks& links, RackLanes& lanes,
                     const Clock& clock, CallWaiter& waiter, Owner& owner)
    : settings_(std::move(settings)),
      links_(links),
      lanes_(lanes),
      clock_(clock),
      waiter_(waiter),
      owner_(owner),
      liveness_timeout_(links.front()->joined.liveness_timeout_ns()),
      random_(SystemRandom().Next()),
      lane_watches_(LaneCount(links)) {
  for (const std::unique_ptr<DaemonLink>& link : links_) {
    watched_.push_back(std::make_unique<Watched>(*this, *link));
    liveness_timeout_ = std::min<DurationNs>(liveness_timeout_, link->joined.liveness_timeout_ns());
  }
}

RackWatch::~RackWatch() { PHUB_CHECK(!pulse_thread_.joinable(), "job={}", settings_.job); }

absl::Status RackWatch::Start() {
  absl::Status status = StartThread(pulse_thread_, "phub-heartbeat", [this] { Pulse(); });
  if (status.ok()) status = StartThread(recover_thread_, "phub-reconnect", [this] { Recover(); });
  if (!status.ok()) {
    Quit();
    return status;
  }
  for (const std::unique_ptr<Watched>& watched : watched_) Attend(*watched);
  const std::lock_guard lock(mutex_);
  begun_ = true;
  changed_.notify_all();
  return absl::OkStatus();
}

void RackWatch::AwaitStart(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return begun_ || quit_; });
}

void RackWatch::Quit() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    changed_.notify_all();
  }
  if (recover_thread_.joinable()) recover_thread_.join();
  if (pulse_thread_.joinable()) pulse_thread_.join();
}

void RackWatch::Attend(Watched& watched) {
  watched.last_heard.store(clock_.Now(), std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    watched.attended = true;
    watched.answered = false;
    watched.must_reconnect = false;
    watched.attended_at = clock_.Now();
  }
  watched.link.channel->Attend(watched);
  SendHeartbeat(watched);  // identifies the session of the stream
}

void RackWatch::SendHeartbeat(const Watched& watched) {
  v1::Heartbeat heartbeat;
  heartbeat.set_session_id(watched.link.joined.session_id());
  heartbeat.set_sequence(heartbeats_.fetch_add(1, std::memory_order_relaxed) + 1);
  watched.link.channel->SendHeartbeat(heartbeat);
}

// ---- Events from daemons -----------------------------------------------------------------------

void RackWatch::OnEvent(Watched& watched, const v1::SessionEvent& event) {
  const TimeNs now = clock_.Now();
  watched.last_heard.store(now, std::memory_order_relaxed);
  bool returned = false;
  {
    const std::lock_guard lock(mutex_);
    // A new stream begins with the present state, so an event says if the daemon is still draining.
    if (!std::exchange(watched.answered, true)) watched.draining.store(false);
    watched.unreachable_at = 0;
    watched.silent_at = 0;
    const TimeNs lost_at = std::exchange(watched.lost_at, 0);
    returned = lost_at != 0;
    if (returned) {
      ForgiveOutage(watched.link, lost_at, now);
      watched.next_attempt = 0;  // its lanes may be reopened at once
      changed_.notify_all();
    }
  }
  if (returned)
    LogInfo("event=daemon_returned job={} rank={} daemon={}", settings_.job, settings_.rank,
            watched.link.endpoint.ToString());
  if (event.event_case() == v1::SessionEvent::kJobFailed) {
    const v1::Fault& fault = event.job_failed().fault();
    owner_.OnVerdict(FaultStatus(fault), fault.key(), watched.link);
    return;
  }
  if (event.event_case() == v1::SessionEvent::kSaved) return owner_.OnSavedState(event.saved());
  if (event.event_case() == v1::SessionEvent::kDump)
    return owner_.OnDumpRequested(event.dump(), watched.link);
  Log(watched, event);
}

void RackWatch::Log(Watched& watched, const v1::SessionEvent& event) {
  const std::string daemon = watched.link.endpoint.ToString();
  switch (event.event_case()) {
    case v1::SessionEvent::kDraining:
      watched.draining.store(!event.draining().over(), std::memory_order_relaxed);
      if (event.draining().over())
        LogInfo("event=daemon_undrained daemon={} job={} rank={}", daemon, settings_.job,
                settings_.rank);
      else
        LogWarning("event=daemon_draining daemon={} job={} rank={} deadline_s={:.1f}", daemon,
                   settings_.job, settings_.rank,
                   static_cast<double>(event.draining().deadline_ns()) / kSecond);
      break;
    case v1::SessionEvent::kAwaited:
      LogWarning("event=rank_awaited job={} rank={} awaited={} host={} daemon={} deadline_s={:.1f}",
                 settings_.job, settings_.rank, event.awaited().rank(), event.awaited().host(),
                 daemon, static_cast<double>(event.awaited().deadline_ns()) / kSecond);
      break;
    case v1::SessionEvent::kReturned:
      LogInfo("event=rank_returned job={} rank={} returned={} restarted={} daemon={}",
              settings_.job, settings_.rank, event.returned().rank(), event.returned().restarted(),
              daemon);
      break;
    case v1::SessionEvent::kMissing: LogMissing(event.missing(), daemon); break;
    case v1::SessionEvent::kLate: LogLate(event.late(), daemon); break;
    case v1::SessionEvent::kRefused:
      LogWarning("event=rank_refused job={} rank={} refused={} host=\"{}\" daemon={} error=\"{}\"",
                 settings_.job, settings_.rank, event.refused().rank(), event.refused().host(),
                 daemon, event.refused().message());
      break;
    case v1::SessionEvent::kJobFailed:
    case v1::SessionEvent::kHeartbeat:
    case v1::SessionEvent::kSaved:
    case v1::SessionEvent::kDump:
    case v1::SessionEvent::EVENT_NOT_SET:  // an event of a newer daemon that this build lacks
      break;
  }
}

void RackWatch::LogMissing(const v1::RanksMissing& missing, const std::string& daemon) const {
  std::string hints;
  for (const std::string& hint : missing.hints()) hints += (hints.empty() ? "" : "; ") + hint;
  LogWarning(
      "event=waiting_for_ranks job={} rank={} missing=\"{}\" waiting_s={:.0f} daemon={} "
      "hints=\"{}\"",
      settings_.job, settings_.rank, fmt::join(missing.ranks(), ","),
      static_cast<double>(missing.waiting_ns()) / kSecond, daemon, Escaped(hints));
}

// Every daemon of the rack notices a rank that is late.
void RackWatch::LogLate(const v1::RoundLate& late, const std::string& daemon) {
  const TimeNs now = clock_.Now();
  {
    const std::lock_guard lock(mutex_);
    if (late_logged_at_ != 0 && now - late_logged_at_ < kLateLogInterval) return;
    late_logged_at_ = now;
  }
  std::string ranks;
  for (const v1::LateRank& rank : late.ranks())
    ranks += fmt::format("{}rank {} ({})", ranks.empty() ? "" : ", ", rank.rank(), rank.host());
  const auto named = static_cast<std::uint32_t>(late.ranks_size());
  if (named < late.late_count()) ranks += AndOthers(late.late_count() - named);
  LogWarning(
      "event=round_late job={} rank={} waiting_for=\"{}\" key=\"{}\" iteration={} waiting_s={:.1f} "
      "usual_s={:.3f} daemon={}",
      settings_.job, settings_.rank, ranks, late.key(), late.iteration(),
      static_cast<double>(late.waiting_ns()) / kSecond,
      static_cast<double>(late.usual_ns()) / kSecond, daemon);
}

void RackWatch::OnAttendClosed(Watched& watched, const absl::Status& status) {
  const DaemonLink& link = watched.link;
  Status lost = absl::IsNotFound(status)
                    ? SessionUnknown(link.endpoint, settings_.job, settings_.rank)
                    : StreamLost(link.endpoint, status, settings_.job, settings_.rank);
  {
    const std::lock_guard lock(mutex_);
    const TimeNs now = clock_.Now();
    watched.attended = false;
    if (over()) return;
    if (IsPassing(status)) {
      watched.stream_status = status;
      if (!watched.answered) watched.unreachable_at = now;
      // A stream that breaks again soon has not recovered, so the pauses keep growing.
      if (now - watched.attended_at > liveness_timeout_) watched.pause = 0;
      if (watched.lost_at == 0) watched.next_attempt = now + Jitter(watched.pause);
      NoteLoss(watched, now, std::move(lost));
      return;
    }
  }
  owner_.OnVerdict(Decorate(watched, std::move(lost)), {}, link);
}

void RackWatch::NoteLoss(Watched& watched, TimeNs now, Status why) {
  if (watched.lost_at == 0) {
    watched.lost_at = now;
    LogWarning("event=daemon_lost job={} rank={} daemon={} error=\"{}\"", settings_.job,
               settings_.rank, watched.link.endpoint.ToString(), why.message());
  }
  watched.why = std::move(why);
  changed_.notify_all();
}

void RackWatch::OnLaneClosed(const LaneClosed& closed) {
  if (over()) return;
  const DaemonLink& link = LinkOfLane(links_, closed.lane);
  const std::uint32_t core =
      link.joined.cores(static_cast<int>(closed.lane - link.first_lane)).core();
  const TimeNs now = clock_.Now();
  const std::lock_guard lock(mutex_);
  LaneWatch& lane = lane_watches_[closed.lane];
  lane.lost_at = now;
  // A lane that breaks again soon after it was reopened has not recovered.
  if (lane.began_at == 0 || now - lane.opened_at > liveness_timeout_) lane.began_at = now;
  lane.why = LaneLost(link.endpoint, core, closed, settings_.job, settings_.rank);
  changed_.notify_all();  // both threads must update their timeouts
}

// A daemon that exits while it is draining was probably stopped on purpose.
Status RackWatch::Decorate(const Watched& watched, Status status) const {
  if (!watched.draining.load(std::memory_order_relaxed)) return status;
  return Status(status.code(), fmt::format("{}; the daemon was draining", status.message()));
}

// ---- Timeouts ----------------------------------------------------------------------------------

void RackWatch::Pulse() {
  pthread_setname_np(pthread_self(), "phub-heartbeat");
  std::unique_lock lock(mutex_);
  AwaitStart(lock);
  const DurationNs interval = std::max<DurationNs>(liveness_timeout_ / 4, 1);
  TimeNs next_heartbeat = clock_.Now() + interval;
  TimeNs last_looked = clock_.Now();
  while (!quit_) {
    lock.unlock();
    const TimeNs now = clock_.Now();
    // If this process itself was suspended, the daemons' silence in that time means nothing.
    if (now - last_looked > 2 * interval)
      for (const std::unique_ptr<Watched>& watched : watched_)
        watched->last_heard.store(now, std::memory_order_relaxed);
    last_looked = now;
    if (now >= next_heartbeat) {
      for (const std::unique_ptr<Watched>& watched : watched_) SendHeartbeat(*watched);
      next_heartbeat = now + interval;
    }
    DurationNs quiet = next_heartbeat - now;
    for (const std::unique_ptr<Watched>& watched : watched_)
      quiet = std::min(quiet, LookAt(*watched, now));
    lock.lock();
    if (!quit_) changed_.wait_for(lock, std::chrono::nanoseconds(quiet));
  }
}

DurationNs RackWatch::LookAt(Watched& watched, TimeNs now) {
  if (over()) return liveness_timeout_;
  bool vouched = false;
  Finding all = LookAtSilence(watched, now, vouched);
  const bool lanes_live = HasLiveLane(watched.link);
  vouched |= settings_.wait && lanes_live;
  for (Finding& one :
       std::array{LookAtControl(watched, now, vouched), LookAtLanes(watched, now, lanes_live)}) {
    if (all.verdict.ok()) all.verdict = std::move(one.verdict);
    all.look_again = std::min(all.look_again, one.look_again);
  }
  if (all.verdict.ok()) return std::max<DurationNs>(all.look_again, 1);
  owner_.OnVerdict(Decorate(watched, all.verdict), {}, watched.link);
  return liveness_timeout_;
}

RackWatch::Finding RackWatch::LookAtControl(Watched& watched, TimeNs now, bool vouched) {
  const DaemonLink& link = watched.link;
  const DurationNs timeout = link.joined.liveness_timeout_ns();
  const std::lock_guard lock(mutex_);
  const DurationNs age = now - watched.last_heard.load(std::memory_order_relaxed);
  const bool silent = watched.attended && age >= timeout;
  if (silent) {
    Status silence = DaemonSilent(link.endpoint, age, settings_.job, settings_.rank);
    // When lanes close after an outage of control, the stream opens soon and says why.
    if (!settings_.wait && now - watched.vouched_at >= timeout)
      return {.verdict = std::move(silence)};
    if (watched.silent_at == 0) watched.silent_at = now;
    watched.must_reconnect = true;
    NoteLoss(watched, now, std::move(silence));
  }
  if (vouched) watched.silent_at = 0;
  DurationNs left = silent || !watched.attended ? timeout : timeout - age;
  if (watched.silent_at != 0) {
    const DurationNs waited = now - watched.silent_at;
    if (waited >= settings_.wait_timeout) return {.verdict = WaitedInVain(watched.why, waited)};
    left = std::min(left, settings_.wait_timeout - waited);
  }
  return {.look_again = left};
}

RackWatch::Finding RackWatch::LookAtLanes(Watched& watched, TimeNs now, bool lanes_live) {
  const DaemonLink& link = watched.link;
  Finding finding{.look_again = liveness_timeout_};
  const std::lock_guard lock(mutex_);
  const bool unreachable = IsUnreachable(watched);
  const DurationNs outage = OutageSince(watched, now, lanes_live);
  for (std::uint32_t lane = link.first_lane; lane < link.first_lane + link.lane_count(); ++lane) {
    LaneWatch& one = lane_watches_[lane];
    if (one.lost_at == 0) continue;
    one.began_at = std::min(now, one.began_at + outage);
    // A protocol violation is certain and would happen again.
    if (one.why.code() == StatusCode::kInternal) return {.verdict = one.why};
    // The cause is in this process: what the daemon would say after its timeout does not name it.
    if (one.why.code() == StatusCode::kResourceExhausted && !settings_.wait)
      return {.verdict = one.why};
    const DurationNs waited = now - (settings_.wait ? one.began_at : one.lost_at);
    const DurationNs timeout = link.joined.liveness_timeout_ns();
    const DurationNs patience = settings_.wait ? settings_.wait_timeout
                                : unreachable
                                    ? std::min(timeout / kDeathGraceFraction, kDeathGraceMax)
                                    : timeout;
    if (waited >= patience) {
      if (settings_.wait) return {.verdict = WaitedInVain(one.why, waited)};
      return {.verdict = unreachable ? ControlLostToo(one.why, watched.stream_status) : one.why};
    }
    finding.look_again = std::min(finding.look_again, patience - waited);
  }
  return finding;
}

bool RackWatch::HasLiveLane(const DaemonLink& link) const {
  for (std::uint32_t lane = 0; lane < link.lane_count(); ++lane) {
    const DurationNs silence = owner_.LaneSilence(link.first_lane + lane);
    if (silence != Engine::kNotWatched && silence < liveness_timeout_ / 2) return true;
  }
  return false;
}

// Policy wait: the time since the last look, if lanes could not be opened again in it, because
// control could not be reached although the daemon is alive.
DurationNs RackWatch::OutageSince(Watched& watched, TimeNs now, bool lanes_live) {
  const DurationNs since = watched.looked_at == 0 ? 0 : now - watched.looked_at;
  watched.looked_at = now;
  const bool control_is_out = !watched.attended || watched.lost_at != 0;
  return settings_.wait && control_is_out && lanes_live ? since : 0;
}

// The daemon still knows the session, so it was alive while its control could not be reached, even
// if no lane showed that.
void RackWatch::ForgiveOutage(const DaemonLink& link, TimeNs since, TimeNs now) {
  for (std::uint32_t lane = link.first_lane; lane < link.first_lane + link.lane_count(); ++lane) {
    LaneWatch& one = lane_watches_[lane];
    if (one.lost_at != 0) one.began_at += now - std::max(one.began_at, since);
  }
}

// True if all lanes to the daemon are lost, and its control could not be reached since.
bool RackWatch::IsUnreachable(const Watched& watched) const {
  if (watched.attended && watched.answered) return false;
  const auto first = lane_watches_.begin() + watched.link.first_lane;
  return std::all_of(first, first + watched.link.lane_count(), [&](const LaneWatch& lane) {
    return lane.lost_at != 0 && lane.lost_at <= watched.unreachable_at;
  });
}

}  // namespace phub::client
