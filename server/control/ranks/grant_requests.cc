#include "server/control/ranks/grant_requests.h"

#include <string>
#include <utility>

#include "common/base/status_text.h"
#include "server/control/on_control.h"
#include "server/control/ranks/joins.h"

namespace phub::server {

Charges ChargesOf(const ControlOptions& options, const JobSettings& settings) {
  const bool first_rack = settings.racks == 0 || options.rack_index == 0;
  return {.job = options.is_anchor() && first_rack,
          .workers = options.is_anchor() && !options.is_aggregator()};
}

Usage GrantNeededBy(const ControlOptions& options, const JobSettings& settings) {
  const Charges charges = ChargesOf(options, settings);
  return {.jobs = charges.job ? 1u : 0u, .workers = charges.workers ? settings.world_size : 0};
}

v1::JoinRequest Kept(const v1::JoinRequest& request) {
  v1::JoinRequest kept = request;
  kept.clear_settings();
  return kept;
}

bool Joins::WaitsForGrant(TimeNs deadline, const v1::JoinRequest& given,
                          const JobSettings& settings, std::string_view peer_address,
                          const Answer<v1::JoinResponse>& answer) {
  const std::string& tenant = TenantOf(given);
  const Usage needed = GrantNeededBy(context_.options, settings);
  // After the deadline the ledger refuses the job.
  if (context_.grants == nullptr || context_.ledger.GrantCovers(tenant, needed) ||
      context_.clock.Now() >= deadline) {
    return false;
  }
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
