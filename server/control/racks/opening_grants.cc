// Messages of other racks that open a job wait, deferred, until this daemon's grants of the
// cluster's quotas cover it.
#include "common/base/status_text.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/ranks/joins.h"

namespace phub::server {
namespace {

// A deferred message may be dropped, and then nobody reads the answer.
constexpr DurationNs kGrantWaitKept = 60 * kSecond;

}  // namespace

bool RackOpening::AwaitsGrant(RackIndex from, const v1::PeerMessage& message,
                              const v1::PeerJob& job, const JobSettings& settings,
                              absl::Status& status) {
  if (context_.grants == nullptr) return false;
  const Usage needed = joins_.GrantNeeded(settings);
  const JobName name(job.tenant(), job.job());
  if (context_.ledger.GrantCovers(job.tenant(), needed)) {
    grant_waits_.erase(name);
    return false;
  }
  const TimeNs now = context_.clock.Now();
  std::erase_if(grant_waits_,
                [&](const auto& each) { return now - each.second.since >= kGrantWaitKept; });
  const auto [entry, is_new] = grant_waits_.try_emplace(name, GrantWait{.since = now});
  if (entry->second.answered) {
    const GrantWait& wait = entry->second;
    if (!wait.status.ok() || now - wait.since >= Context::kGrantPatience) {
      status = wait.status;  // if it is OK, the ledger refuses the job
      grant_waits_.erase(entry);
      return false;
    }
  }
  if (is_new || entry->second.answered) AskForGrant(name, needed);
  messages_.Defer(from, message);
  return true;
}

void RackOpening::AskForGrant(const JobName& name, const Usage& needed) {
  grant_waits_[name].answered = false;
  context_.grants->Ask(name.first, needed, [this, name](const absl::Status& status) {
    const auto found = grant_waits_.find(name);
    if (found == grant_waits_.end()) return;
    found->second.answered = true;
    if (status.ok()) return;
    found->second.status = context_.Refuse(
        ControlCounter::joins_refused_quota,
        absl::Status(status.code(), fmt::format("{} did not open job {}: {}",
                                                context_.options.DescribeRack(
                                                    RackIndex{context_.options.rack_index}),
                                                name.second, MessageOf(status))));
  });
}

}  // namespace phub::server
