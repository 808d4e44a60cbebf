// Converts the rank of a lane message to control's numbering. Pure function.
#pragma once

#include "server/control/jobs/job_table.h"

namespace phub::server {

// A worker sends its rank in the whole job, but control numbers the ranks of each rack from 0. Does
// not change messages from other racks or for unknown jobs.
template <typename Message>
Message InRack(const JobTable& jobs, Message message) {
  const Job* const job = jobs.FindIncarnation(message.incarnation);
  if (job != nullptr && LaneOwner::OfHello(message.rank).is_worker()) {
    message.rank.value -= job->config.rank_base;
  }
  return message;
}

}  // namespace phub::server
