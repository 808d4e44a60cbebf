// Calls the control planes of all daemons of a rack at once and collects the responses. Used by the
// callers' threads of one job. The links do not change after the rank has joined.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/call_waiter.h"
#include "client/session/daemon_link.h"
#include "client/session/fault_text.h"
#include "client/session/key_owner.h"
#include "common/base/clock.h"
#include "phub/client.h"

namespace phub::client {

class RackCalls {
 public:
  // `options` must outlive this object. call_timeout: timeout of one call.
  RackCalls(const JobOptions& options, std::chrono::milliseconds call_timeout, const Clock& clock)
      : options_(options), call_timeout_(call_timeout), clock_(clock) {}

  DaemonLinks& links() { return links_; }  // the anchor first
  const DaemonLinks& links() const { return links_; }
  CallWaiter& waiter() { return waiter_; }
  std::vector<DaemonLink*> All() const;

  DurationNs timeout() const;
  // After Leave no thread monitors the daemons, so the call needs a short timeout of its own.
  DurationNs leave_timeout() const;

  // Calls each of these daemons, start(link, done), all at once. Policy wait: retries where a
  // daemon could not be reached, until it answers, wait_timeout has passed or the job is over.
  template <typename Response, typename Start>
  std::vector<absl::StatusOr<Response>> Each(std::span<DaemonLink* const> links, Start start);

  // The error of a failed call for the caller: the job's verdict if there is one, since it explains
  // more than the interrupted call.
  Status StatusOf(const KeyOwner& job, const char* call, const DaemonLink& link,
                  const absl::Status& status) const;

 private:
  const JobOptions& options_;
  const std::chrono::milliseconds call_timeout_;
  const Clock& clock_;
  CallWaiter waiter_;
  DaemonLinks links_;
};

template <typename Response, typename Start>
std::vector<absl::StatusOr<Response>> RackCalls::Each(std::span<DaemonLink* const> links,
                                                      Start start) {
  constexpr DurationNs kPause = 50 * kMillisecond;
  const bool wait = options_.on_loss == LossPolicy::kWait;
  const TimeNs deadline =
      clock_.Now() +
      std::chrono::duration_cast<std::chrono::nanoseconds>(options_.wait_timeout).count();
  std::vector<absl::StatusOr<Response>> answers(links.size(), absl::UnavailableError("not asked"));
  for (;;) {
    std::vector<std::size_t> asked;
    for (std::size_t i = 0; i < links.size(); ++i)
      if (!answers[i].ok() && IsPassing(answers[i].status())) asked.push_back(i);
    if (asked.empty()) return answers;
    auto got = waiter_.AwaitAll<Response>(
        asked.size(), [&](std::size_t i, auto done) { start(*links[asked[i]], std::move(done)); });
    for (std::size_t i = 0; i < asked.size(); ++i) answers[asked[i]] = std::move(got[i]);
    if (!wait || clock_.Now() >= deadline) return answers;
    const bool all_answered = std::none_of(answers.begin(), answers.end(), [](const auto& answer) {
      return !answer.ok() && IsPassing(answer.status());
    });
    if (all_answered || waiter_.Pause(kPause)) return answers;
  }
}

}  // namespace phub::client
