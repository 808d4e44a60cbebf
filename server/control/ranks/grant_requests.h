// What new jobs need of this daemon's grants of a cluster's quotas (tenant/grants.h). A job at
// several daemons counts once: the job at the first daemon of rack 0, its workers at the first
// daemon of their rack. Under control's lock.
#pragma once

#include "phub/v1/session.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_options.h"
#include "server/tenant/ledger.h"

namespace phub::server {

// What counts at this daemon.
Charges ChargesOf(const ControlOptions& options, const JobSettings& settings);
Usage GrantNeededBy(const ControlOptions& options, const JobSettings& settings);

// A request that waits. CheckRack has accepted it, so its settings are not needed any more.
v1::JoinRequest Kept(const v1::JoinRequest& request);

}  // namespace phub::server
