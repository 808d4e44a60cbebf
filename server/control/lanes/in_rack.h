// Ranks as lanes name them, and as control counts them. Pure function.
#pragma once

#include "server/control/jobs/job_table.h"

namespace phub::server {

// A worker names its rank in the job; control counts ranks from 0 in each rack. Other racks' lanes
// and unknown jobs stay as they are.
template <typename Message>
Message InRack(const JobTable& jobs, Message message) {
  const Job* const job = jobs.FindIncarnation(message.incarnation);
  if (job != nullptr && LaneOwner::OfHello(message.rank).is_worker()) {
    message.rank.value -= job->config.rank_base;
  }
  return message;
}

}  // namespace phub::server
