#include "client/session/rack_calls.h"

namespace phub::client {

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

Status RackCalls::StatusOf(const KeyOwner& job, const char* call, const DaemonLink& link,
                           const absl::Status& status) const {
  if (Status verdict = job.status(); !verdict.ok()) return verdict;
  // With one daemon, an error that it returned needs no daemon name.
  return links_.size() < 2 ? CallStatus(call, link.endpoint, status)
                           : NamedCallStatus(call, link.endpoint, status);
}

}  // namespace phub::client
