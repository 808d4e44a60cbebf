#include "client/session/job_impl.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/session/rack_join.h"
#include "common/base/log.h"
#include "common/rpc/outage.h"

namespace phub::client {

// ---- State -------------------------------------------------------------------------------------

Status JobImpl::status() const {
  if (!failed_.load(std::memory_order_acquire)) return Status();
  const std::lock_guard lock(mutex_);
  return verdict_;
}

std::string JobImpl::verdict_key() const {
  const std::lock_guard lock(mutex_);
  return verdict_key_;
}

std::vector<std::shared_ptr<KeyImpl>> JobImpl::Keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

// REQUIRES: mutex_ is held.
std::uint64_t JobImpl::LeastIteration() const {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t least = kNone;
  for (const std::shared_ptr<KeyImpl>& key : keys_)
    if (!key->definition.collective) least = std::min(least, key->job_iteration());
  return least == kNone ? keyless_iteration_ : least;
}

std::uint64_t JobImpl::iteration() const {
  const std::lock_guard lock(mutex_);
  return LeastIteration();
}

IterationOutcome JobImpl::last_iteration() const {
  const IterationDecider::Outcome outcome = engine_->outcome();
  return {.decided = outcome.decided,
          .skipped = outcome.skipped,
          .last_skipped = outcome.last_skipped,
          .norm = outcome.norm,
          .scale = outcome.scale};
}

// ---- Ending ------------------------------------------------------------------------------------

void JobImpl::Fail(Status verdict, std::string key, const DaemonLink* from,
                   const DaemonLink* anchor) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_.ok()) return;
    text = verdict.message();
    // The verdict sent to daemons does not name the checkpoint: each rank appends its own.
    verdict_ = WithCheckpoint(std::move(verdict));
    verdict_key_ = std::move(key);
    failed_.store(true, std::memory_order_release);
  }
  watch_->StandDown();
  if (!leaving_.exchange(true)) LeaveElsewhere(text, from, anchor);
  Submit({.kind = Command::Kind::kStop});
}

// Does not wait for the responses; Shutdown() does, before it closes the channels.
void JobImpl::LeaveElsewhere(const std::string& verdict, const DaemonLink* from,
                             const DaemonLink* anchor) {
  for (const std::unique_ptr<DaemonLink>& link : calls_.links()) {
    if (link.get() == from || link.get() == anchor) continue;
    {
      const std::lock_guard lock(mutex_);
      ++leaves_pending_;
    }
    link->channel->Call<rpc::Leave>(LeaveRequestOf(*link, verdict), calls_.leave_timeout(),
                                    [this, link = link.get()](const auto& response) {
                                      // Other errors: the daemon knows that the job has ended.
                                      if (rpc::IsOutage(response.status()))
                                        LogWarning(
                                            "event=daemon_not_told job={} rank={} daemon={} "
                                            "error=\"{}\"",
                                            name(), rank(), link->endpoint.ToString(),
                                            std::string(response.status().message()));
                                      const std::lock_guard lock(mutex_);
                                      --leaves_pending_;
                                      changed_.notify_all();
                                    });
  }
}

void JobImpl::OnStopped() {
  {
    const std::lock_guard lock(mutex_);
    ended_.store(true, std::memory_order_seq_cst);
    changed_.notify_all();
  }
  calls_.waiter().End();
  for (const std::shared_ptr<KeyImpl>& key : AllKeys()) key->WakeAll();
}

Status JobImpl::Drain() {
  const auto deadline = std::chrono::steady_clock::now() + settings_.options.leave_timeout;
  for (const std::shared_ptr<KeyImpl>& key : AllKeys())
    if (!key->WaitIdle(deadline) && !ended())
      return Status(
          StatusCode::kDeadlineExceeded,
          fmt::format("rank {} left job {} while iteration {} of key {} was still in flight "
                      "(leave_timeout is {} ms)",
                      rank(), name(), key->iteration.load() + 1, key->definition.name,
                      settings_.options.leave_timeout.count()));
  return Status();
}

Status JobImpl::Leave() {
  calls_.waiter().BeginLeaving();  // RemoveKeys may hold the lock until other ranks call it
  const std::lock_guard calls(calls_mutex_);
  if (left_) return leave_status_;
  left_ = true;
  leave_status_ = Drain();
  first_verdict_.Await();
  if (status().ok()) {
    const Status left = LeaveEverywhere();
    if (!left.ok() && leave_status_.ok()) leave_status_ = left;
  } else if (leave_status_.ok()) {
    leave_status_ = status();
  }
  Shutdown(Status(StatusCode::kCancelled, fmt::format("rank {} left job {}", rank(), name())));
  return leave_status_;
}

Status JobImpl::LeaveEverywhere() {
  if (leaving_.exchange(true)) return status();  // a verdict came first
  watch_->StandDown();
  return LeaveRunningRack(calls_, open_lanes_, clock_);
}

// Ends threads and calls in any state of the job. Afterwards keys only keep their memory alive.
void JobImpl::Shutdown(Status verdict) {
  if (engine_ != nullptr) {
    first_verdict_.Await();
    Fail(std::move(verdict));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended(); });
    lock.unlock();
    watch_->Quit();
    lock.lock();
    changed_.wait(lock, [this] { return leaves_pending_ == 0; });
    lock.unlock();
    first_verdict_.Await();
  }
  for (const std::unique_ptr<DaemonLink>& link : calls_.links()) link->channel->Close();
  dump_answers_.Quit();
  if (engine_ != nullptr) {
    engine_->Quit();
    lanes_->Clear();
  }
  if (std::exchange(in_timeline_, false)) timeline_->JobEnded();
  const std::lock_guard lock(mutex_);
  keyless_iteration_ = LeastIteration();
  keys_.clear();  // they own this object
  groups_.Clear();
}

}  // namespace phub::client
