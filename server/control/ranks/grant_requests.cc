// Joins that wait until this daemon's grants of the cluster's quotas cover their jobs.
#include <string>
#include <utility>

#include "common/base/status_text.h"
#include "server/control/jobs/grant_needs.h"
#include "server/control/jobs/job_options.h"
#include "server/control/on_control.h"
#include "server/control/ranks/joins.h"

namespace phub::server {

v1::JoinRequest Kept(const v1::JoinRequest& request) {
  v1::JoinRequest kept = request;
  kept.clear_settings();
  return kept;
}

Usage Joins::GrantNeeded(const JobSettings& settings) const {
  Usage needed = GrantNeededBy(context_.options, settings);
  Job job;  // only to compute its size
  job.config = MakeShardConfig(settings, Incarnation{});
  needed.memory_bytes = MemoryOfJob(job);
  return needed;
}

bool Joins::WaitsForGrant(TimeNs deadline, const v1::JoinRequest& given,
                          const JobSettings& settings, std::string_view peer_address,
                          const Answer<v1::JoinResponse>& answer) {
  // After the deadline the ledger refuses the job.
  if (context_.grants == nullptr || context_.clock.Now() >= deadline) return false;
  const std::string& tenant = TenantOf(given);
  const Usage needed = GrantNeeded(settings);
  if (context_.ledger.GrantCovers(tenant, needed)) return false;
  if (absl::Status room = CheckRoom(given); !room.ok()) {
    answer(room, {});
    return true;
  }
  context_.grants->Ask(
      tenant, needed,
      [this, deadline, kept = Kept(given), peer = std::string(peer_address),
       answer](const absl::Status& status) {
        if (status.ok()) return JoinUntil(deadline, kept, peer, answer);
        answer(context_.Refuse(
                   ControlCounter::joins_refused_quota,
                   absl::Status(status.code(), fmt::format("job {} was not created: {}", kept.job(),
                                                           MessageOf(status)))),
               {});
      });
  return true;
}

}  // namespace phub::server
