#include "client/session/key_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "client/session/job_state.h"
#include "common/base/check.h"

namespace phub::client {
namespace {

// Before blocking: a small round is often complete within a few yields, and a wake costs more.
constexpr int kYieldsBeforeBlocking = 4;

const std::byte* BytesOf(const float* values) { return reinterpret_cast<const std::byte*>(values); }
std::byte* BytesOf(float* values) { return reinterpret_cast<std::byte*>(values); }

}  // namespace

KeyState::KeyState(std::shared_ptr<JobState> job_in, KeyIndex index_in, KeyDefinition definition_in)
    : job(std::move(job_in)), index(index_in), definition(std::move(definition_in)) {}

std::string KeyState::Place() const {
  return fmt::format("key {} of job {}, rank {}", definition.name, job->name(), job->rank());
}

bool KeyState::Done(std::uint64_t ticket) const {
  return done_ticket_.load(std::memory_order_seq_cst) >= ticket;
}

bool KeyState::Withdrawn(std::uint64_t ticket) const {
  return std::find(withdrawn_.begin(), withdrawn_.end(), ticket) != withdrawn_.end();
}

Result<std::uint64_t> KeyState::Start(const Round& round) {
  std::unique_lock lock(mutex_);
  if (Status verdict = job->status(); !verdict.ok()) return verdict;
  if (!Done(last_ticket_))
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: iteration {} is still under way; wait for its handle before "
                              "the next push",
                              Place(), iteration.load(std::memory_order_relaxed) + 1));
  pushed_ticket_before_ = pushed_ticket_;
  pushed_ticket_ = ++last_ticket_;
  const std::uint64_t ticket = last_ticket_;
  // Without the lock: submitting may wait for the engine's thread, which may want the lock.
  lock.unlock();
  job->Submit({.kind = Command::Kind::kPush,
               .operation = round.operation,
               .key = index,
               .root = round.root,
               .ticket = ticket,
               .gradients = BytesOf(round.gradients),
               .parameters = BytesOf(round.parameters)});
  return ticket;
}

Result<std::uint64_t> KeyState::LastPushed() {
  const std::lock_guard lock(mutex_);
  if (pushed_ticket_ == 0)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: nothing was pushed yet, so there is nothing to pull", Place()));
  return pushed_ticket_;
}

template <typename Predicate>
bool KeyState::Block(std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                     Predicate predicate) {
  if (deadline) return changed_.wait_until(lock, *deadline, predicate);
  changed_.wait(lock, predicate);
  return true;
}

Status KeyState::Wait(std::uint64_t ticket, const Deadline& deadline) {
  for (int i = 0; i < kYieldsBeforeBlocking && !Test(ticket); ++i) std::this_thread::yield();
  if (!Test(ticket)) {
    // The engine's thread looks at waiting_ after it wrote done_ticket_, and this one writes it
    // before it looks there: one of them sees the other.
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    std::unique_lock lock(mutex_);
    const bool complete = Block(lock, deadline, [&] { return Test(ticket); });
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
    if (!complete)
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("{}: iteration {} is still under way", Place(),
                                iteration.load(std::memory_order_relaxed) + 1));
  }
  return Outcome(ticket);
}

Status KeyState::Outcome(std::uint64_t ticket) {
  if (Done(ticket)) {
    const std::lock_guard lock(mutex_);
    if (!Withdrawn(ticket)) return Status();
    return Status(StatusCode::kCancelled, fmt::format("{}: the push was withdrawn", Place()));
  }
  const Status verdict = job->status();
  PHUB_CHECK(!verdict.ok(), "key={} ticket={}", definition.name, ticket);
  if (job->verdict_key() == definition.name) return verdict;
  return Status(verdict.code(),
                fmt::format("{}; key {} was waiting for iteration {}", verdict.message(),
                            definition.name, iteration.load(std::memory_order_relaxed) + 1));
}

bool KeyState::Test(std::uint64_t ticket) const { return Done(ticket) || job->ended(); }

Status KeyState::Cancel(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  if (!Done(ticket) && !job->ended()) {
    const std::uint64_t asked = ++cancels_asked_;
    lock.unlock();
    job->Submit({.kind = Command::Kind::kCancel, .key = index, .ticket = ticket});
    lock.lock();
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, [&] { return cancels_answered_ >= asked || job->ended(); });
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (Withdrawn(ticket)) return Status();
  const char* why = Done(ticket)   ? "the round is complete"
                    : job->ended() ? "the job has ended"
                                   : "some of it was sent: the round is under way";
  return Status(StatusCode::kFailedPrecondition,
                fmt::format("{}: too late to cancel, {}", Place(), why));
}

bool KeyState::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  std::unique_lock lock(mutex_);
  Block(lock, deadline, [&] { return Test(last_ticket_); });
  waiting_.fetch_sub(1, std::memory_order_seq_cst);
  return Done(last_ticket_);
}

void KeyState::WakeAll() {
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

void KeyState::OnRoundComplete(std::uint64_t ticket, Iteration completed) {
  iteration.store(completed.value, std::memory_order_relaxed);
  done_ticket_.store(ticket, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) > 0) WakeAll();
}

void KeyState::OnCancelAnswered(std::uint64_t ticket, bool withdrawn) {
  {
    const std::lock_guard lock(mutex_);
    ++cancels_answered_;
    if (withdrawn) {
      withdrawn_[withdrawn_count_++ % kWithdrawnRemembered] = ticket;
      pushed_ticket_ = pushed_ticket_before_;
      done_ticket_.store(ticket, std::memory_order_seq_cst);
    }
  }
  changed_.notify_all();
}

}  // namespace phub::client
