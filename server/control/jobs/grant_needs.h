// What jobs need of this daemon's grants of a cluster's quotas (tenant/grants.h). A job at several
// daemons counts once: the job and its keys at the first daemon of rack 0, its workers at the first
// daemon of their rack. Memory counts where it is.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/control/control_options.h"
#include "server/control/jobs/job.h"
#include "server/tenant/ledger.h"

namespace phub::server {

// What counts at this daemon.
Charges ChargesOf(const ControlOptions& options, const JobSettings& settings);
// Without memory and keys.
Usage GrantNeededBy(const ControlOptions& options, const JobSettings& settings);

// Why a grant does not cover what the job needs, with the job's name. OK stays OK.
absl::Status OfJob(const std::string& job, const absl::Status& covered);

}  // namespace phub::server
