#include "client/session/completion_queue.h"

#include "client/session/key_impl.h"

namespace phub::client {

void CompletionQueue::Report(WatchedRounds& one) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      one.front().key.reset();  // the caller is the key, so this is not the last reference
      return;
    }
    ready_.splice(ready_.end(), one);
  }
  changed_.notify_one();
}

CompletionQueue::Outcome CompletionQueue::Wait(const Deadline& deadline, WatchedRounds& one) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return closed_ || !ready_.empty(); };
  if (deadline) {
    if (!changed_.wait_until(lock, *deadline, ready)) return Outcome::kTimedOut;
  } else {
    changed_.wait(lock, ready);
  }
  if (closed_) return Outcome::kClosed;
  one.splice(one.end(), ready_, ready_.begin());
  return Outcome::kReady;
}

void CompletionQueue::Close() {
  WatchedRounds discarded;  // destroyed without the lock, since keys take theirs first
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    discarded.splice(discarded.end(), ready_);
  }
  changed_.notify_all();
}

}  // namespace phub::client
