#include "server/control/event_log.h"

#include <algorithm>

namespace phub::server {

bool EventLog::TakeLine(const std::string& tenant) {
  const bool taken = of_tenants_.Take(tenant, clock_.Now());
  if (!taken) counters_.Add(ControlCounter::log_lines_suppressed);
  return taken;
}

void EventLog::Refusal(ControlCounter reason, const std::string& peer, std::string_view message) {
  const char* const name = kControlCounterNames[static_cast<std::size_t>(reason)];
  const TimeNs now = clock_.Now();
  const bool has_share =
      peer.empty() || refusals_of_peers_.Take(fmt::format("{} {}", name, peer), now);
  if (has_share && refusals_.Take(name, now)) {
    LogWarning("event=refused reason={} message=\"{}\"", name, message);
    return;
  }
  if (!has_share) refusals_.LeaveOut(name, now);
  counters_.Add(ControlCounter::log_lines_suppressed);
}

bool EventLog::MayLogLaneRefusal(std::string_view peer) {
  const bool taken = refused_lanes_.Take(peer, clock_.Now());
  if (!taken) counters_.Add(ControlCounter::log_lines_suppressed);
  return taken;
}

void EventLog::Poll() {
  const TimeNs now = clock_.Now();
  for (const LineBudget::Summary& each : of_tenants_.TakeSummaries(now))
    LogWarning("event=lines_suppressed tenant={} count={}", each.subject, each.count);
  for (const LineBudget::Summary& each : refusals_.TakeSummaries(now))
    LogWarning("event=lines_suppressed reason={} count={}", each.subject, each.count);
  for (const LineBudget::Summary& each : refused_lanes_.TakeSummaries(now))
    LogWarning("event=lines_suppressed refused_lanes_of=\"{}\" count={}", each.subject, each.count);
  // The lines about reasons include what was left out for lack of a peer's share.
  if (now < peers_forgotten_at_ + kPeerLines.summary_every) return;
  peers_forgotten_at_ = now;
  refusals_of_peers_.TakeSummaries(now);
}

TimeNs EventLog::NextTimer() const {
  return std::min(
      {of_tenants_.NextSummary(), refusals_.NextSummary(), refused_lanes_.NextSummary()});
}

}  // namespace phub::server
