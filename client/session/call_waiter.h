// Waits for the answers of asynchronous calls; the end of the job answers too. Shared by everybody
// who calls a daemon on behalf of one job.
//
// Threads. Any; the answers come on threads of the channels, which must not wait here.
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
  // The job is over: nobody waits any more.
  void End() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

  // Starts `count` calls at once: start(i, done), where `done` is to be called once with the
  // answer. Returns all answers, kAborted for those that the end of the job forestalled.
  template <typename Response, typename Start>
  std::vector<absl::StatusOr<Response>> AwaitAll(std::size_t count, Start start) {
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
    changed_.wait(lock, [&] { return answers->missing == 0 || over_; });
    return answers->values;  // a copy: late answers still come
  }

  template <typename Response, typename Start>
  absl::StatusOr<Response> Await(Start start) {
    auto answers = AwaitAll<Response>(
        1, [&](std::size_t, auto done) { start(std::move(done)); });
    return std::move(answers.front());
  }

  // For a while, or until the job is over. True if it is.
  bool Pause(DurationNs duration) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(duration), [this] { return over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
};

}  // namespace phub::client
