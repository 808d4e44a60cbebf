#include "client/session/rack_calls.h"

#include <string>

#include "client/session/wait_graph.h"
#include "common/base/log.h"
#include "common/base/random.h"

namespace phub::client {
namespace {

constexpr DurationNs kOutageLogInterval = 10 * kSecond;
constexpr DurationNs kVerdictWait = 2 * kSecond;
constexpr DurationNs kStallsPatience = 2 * kSecond;

// Whether the daemon may have answered this because the job has ended.
bool MayMeanTheEnd(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

bool RackCalls::Outage::Pause(const DaemonLink& link, const absl::Status& status) {
  const TimeNs now = calls_.clock_.Now();
  if (begun_at_ == 0) begun_at_ = now;
  if (logged_at_ == 0 || now - logged_at_ >= kOutageLogInterval) {
    logged_at_ = now;
    LogWarning("event=call_waits job={} rank={} call={} daemon={} waited_s={:.1f} error=\"{}\"",
               calls_.options_.job, calls_.options_.rank, call_, link.endpoint.ToString(),
               static_cast<double>(now - begun_at_) / kSecond, std::string(status.message()));
  }
  SystemRandom random;
  return !calls_.waiter_.Pause(backoff_.Next(random));
}

std::vector<DaemonLink*> RackCalls::All() const {
  std::vector<DaemonLink*> links;
  for (const std::unique_ptr<DaemonLink>& link : links_) links.push_back(link.get());
  return links;
}

DurationNs RackCalls::timeout() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(call_timeout_).count();
}

DurationNs RackCalls::leave_timeout() const {
  return std::min<DurationNs>(timeout(), links_.front()->joined.liveness_timeout_ns());
}

v1::ListStallsResponse RackCalls::Stalls(const std::string& tenant) const {
  v1::ListStallsRequest request;
  request.set_tenant(tenant);
  request.set_job(options_.job);
  v1::ListStallsResponse all;
  for (auto& answer :
       waiter_.AwaitAll<v1::ListStallsResponse>(links_.size(), [&](std::size_t i, auto done) {
         links_[i]->channel->Call<rpc::ListStalls>(request, kStallsPatience, std::move(done));
       })) {
    if (!answer.ok()) continue;
    for (v1::Stall& stall : *answer->mutable_stalls()) *all.add_stalls() = std::move(stall);
    if (answer->has_barrier()) *all.mutable_barrier() = std::move(*answer->mutable_barrier());
  }
  return all;
}

std::string RackCalls::ExplainWait(const std::string& tenant, const std::string& key) const {
  return DescribeWait(Stalls(tenant), key, options_.rank);
}

std::string RackCalls::ExplainBarrier(const std::string& tenant) const {
  return DescribeBarrierWait(Stalls(tenant), options_.rank);
}

Status RackCalls::StatusOf(const KeyOwner& job, const char* call, const DaemonLink& link,
                           const absl::Status& status) const {
  const bool may_mean_the_end =
      MayMeanTheEnd(status) || (links_.size() > 1 && absl::IsAborted(status));
  if (may_mean_the_end) waiter_.Pause(kVerdictWait);
  if (Status verdict = job.AwaitVerdict(); !verdict.ok()) return verdict;
  // With one daemon, an error that it returned needs no daemon name.
  return links_.size() < 2 ? CallStatus(call, link.endpoint, status)
                           : NamedCallStatus(call, link.endpoint, status);
}

}  // namespace phub::client
