// Calls the control planes of all daemons of a rack at once and collects the responses. Used by the
// callers' threads of one job. The links do not change after the rank has joined.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/call_waiter.h"
#include "client/session/daemon_link.h"
#include "client/session/fault_text.h"
#include "client/session/key_owner.h"
#include "client/session/waiting_calls.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/shortage.h"
#include "common/rpc/outage.h"
#include "phub/client.h"

namespace phub::client {

class RackCalls {
 public:
  // `options` must outlive this object. call_timeout: timeout of one call.
  RackCalls(const JobOptions& options, std::chrono::milliseconds call_timeout, const Clock& clock)
      : options_(options), call_timeout_(call_timeout), clock_(clock), waiting_(clock) {}

  DaemonLinks& links() { return links_; }  // the anchor first
  const DaemonLinks& links() const { return links_; }
  CallWaiter& waiter() { return waiter_; }
  const WaitingCalls& waiting() const { return waiting_; }
  std::vector<DaemonLink*> All() const;
  // KeyOwner::ExplainWait().
  std::string ExplainWait(const std::string& tenant, const std::string& key) const;
  // For whom this rank waits in a barrier; empty: it waits in none, or no daemon answers.
  std::string ExplainBarrier(const std::string& tenant) const;

  DurationNs timeout() const;
  // After Leave no thread monitors the daemons, so the call needs a short timeout of its own.
  DurationNs leave_timeout() const;

  // Calls each of these daemons, start(link, done), all at once. Repeats the call where control
  // cannot be reached or is too busy (common/rpc/outage.h), under every policy: as long as the job
  // runs, and `patient(link)` if given. A dead daemon ends the job, which ends the wait.
  // waits_for_ranks: so does this rank when it leaves; see CallWaiter::BeginLeaving.
  template <typename Response, typename Start>
  std::vector<absl::StatusOr<Response>> Each(
      const char* call, std::span<DaemonLink* const> links, Start start,
      const std::function<bool(const DaemonLink&)>& patient = nullptr,
      bool waits_for_ranks = false);

  // The error of a failed call for the caller: the job's verdict if there is one, since it explains
  // more than the interrupted call. A daemon that has ended the job may refuse a call before its
  // stream says why, so such an error waits a short time for a verdict.
  Status StatusOf(const KeyOwner& job, const char* call, const DaemonLink& link,
                  const absl::Status& status) const;

 private:
  // From all daemons that answer within 2 s.
  v1::ListStallsResponse Stalls(const std::string& tenant) const;

  // The pauses between attempts, and the log of a wait.
  class Outage {
   public:
    Outage(const RackCalls& calls, const char* call) : calls_(calls), call_(call) {}
    // Returns false if the job is over.
    bool Pause(const DaemonLink& link, const absl::Status& status);

   private:
    const RackCalls& calls_;
    const char* const call_;
    TimeNs begun_at_ = 0;  // 0: not yet
    TimeNs logged_at_ = 0;
    Backoff backoff_;
  };

  const JobOptions& options_;
  const std::chrono::milliseconds call_timeout_;
  const Clock& clock_;
  mutable CallWaiter waiter_;
  WaitingCalls waiting_;
  DaemonLinks links_;
};

template <typename Response, typename Start>
std::vector<absl::StatusOr<Response>> RackCalls::Each(
    const char* call, std::span<DaemonLink* const> links, Start start,
    const std::function<bool(const DaemonLink&)>& patient, bool waits_for_ranks) {
  Outage outage(*this, call);
  const WaitingCalls::Mark mark(waiting_, call);
  std::vector<absl::StatusOr<Response>> answers(links.size(), absl::UnavailableError("not asked"));
  std::vector<std::size_t> asked(links.size());
  std::iota(asked.begin(), asked.end(), 0);
  while (!asked.empty()) {
    auto arrived = waiter_.AwaitAll<Response>(
        asked.size(), [&](std::size_t i, auto done) { start(*links[asked[i]], std::move(done)); },
        waits_for_ranks);
    if (waits_for_ranks && waiter_.leaves()) return arrived;
    std::vector<std::size_t> unreached;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const bool again =
          rpc::IsOutage(arrived[i].status()) && (patient == nullptr || patient(*links[asked[i]]));
      if (again) unreached.push_back(asked[i]);
      answers[asked[i]] = std::move(arrived[i]);
    }
    if (unreached.empty()) return answers;
    const std::size_t first = unreached.front();
    if (absl::Status room = CheckRoom(rpc::kDescriptorsOfCall, 0, call); !room.ok()) {
      answers[first] = std::move(room);
      return answers;
    }
    if (!outage.Pause(*links[first], answers[first].status())) return answers;
    asked = std::move(unreached);
  }
  return answers;
}

}  // namespace phub::client
