// Waits for the responses of asynchronous calls, or for the end of the job. One job's calls to its
// daemons share one CallWaiter.
//
// Threads: any. Responses arrive on channel threads, which must not wait here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace phub::client {

class CallWaiter {
 public:
  // The job is over: wakes all waiters, and later waits return at once.
  void End() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

  // This rank is about to leave: wakes all waits for other ranks, and later ones return at once.
  void BeginLeaving() {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
    changed_.notify_all();
  }
  bool leaves() const {
    const std::lock_guard lock(mutex_);
    return leaves_;
  }

  // Starts `count` calls at once: start(i, done), which must call `done` once with the response.
  // Returns all responses; kAborted for those that had not arrived when the job ended, or, if the
  // call waits for other ranks, when this rank began to leave.
  template <typename Response, typename Start>
  std::vector<absl::StatusOr<Response>> AwaitAll(std::size_t count, Start start,
                                                 bool waits_for_ranks = false) {
    struct Answers {
      std::vector<absl::StatusOr<Response>> values;
      std::size_t missing = 0;
    };
    auto answers = std::make_shared<Answers>();
    answers->values.resize(count, absl::AbortedError("the job ended"));
    answers->missing = count;
    for (std::size_t i = 0; i < count; ++i)
      start(i, [this, answers, i](absl::StatusOr<Response> response) {
        const std::lock_guard lock(mutex_);
        answers->values[i] = std::move(response);
        if (--answers->missing == 0) changed_.notify_all();
      });
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return answers->missing == 0 || over_ || (waits_for_ranks && leaves_); });
    return answers->values;  // a copy: late responses still write to the original
  }

  template <typename Response, typename Start>
  absl::StatusOr<Response> Await(Start start) {
    auto answers = AwaitAll<Response>(1, [&](std::size_t, auto done) { start(std::move(done)); });
    return std::move(answers.front());
  }

  // The same. Calls notice() after `first`, and then every `again`, until the response is there.
  template <typename Response, typename Start, typename Notice>
  absl::StatusOr<Response> AwaitWithNotices(Start start, DurationNs first, DurationNs again,
                                            Notice notice) {
    struct Answer {
      absl::StatusOr<Response> value = absl::AbortedError("the job ended");
      bool arrived = false;
    };
    const auto answer = std::make_shared<Answer>();
    start([this, answer](absl::StatusOr<Response> response) {
      const std::lock_guard lock(mutex_);
      answer->value = std::move(response);
      answer->arrived = true;
      changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    for (DurationNs pause = first;; pause = again) {
      const bool ended = changed_.wait_for(lock, std::chrono::nanoseconds(pause),
                                           [&] { return answer->arrived || over_; });
      if (ended) return answer->value;  // a copy: a late response still writes to the original
      lock.unlock();
      notice();
      lock.lock();
    }
  }

  // Waits for `duration` or until the job is over. Returns true if the job is over.
  bool Pause(DurationNs duration) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(duration), [this] { return over_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  bool leaves_ = false;
};

}  // namespace phub::client
