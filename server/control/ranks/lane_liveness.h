// Judges workers by their lanes: core loops measure how long each lane has been silent, and this
// part decides what it means. Reads the newest measurements, so a verdict that comes late, because
// control was stuck, is still right.
//
// A rank is judged by its lanes while all of them are open and the worker sends keep-alives on
// them. Until then, and for older workers, heartbeats decide (ranks/liveness.h).
//
// Owned by Liveness; under control's lock.
#pragma once

#include "server/control/context.h"
#include "server/control/jobs/diagnoses.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/presence.h"

namespace phub::server {

class LaneLiveness {
 public:
  LaneLiveness(Context& context, JobTable& jobs, Diagnoses& diagnoses, Presence& presence)
      : context_(context), jobs_(jobs), diagnoses_(diagnoses), presence_(presence) {}

  // Looks at all lanes if it is time. Sets Member::lanes_kept.
  void Check(TimeNs now);
  // When to check again.
  TimeNs next() const { return next_; }

 private:
  void CheckRank(Job& job, Rank rank, TimeNs now, DurationNs& look_again);
  void Blame(Job& job, Rank rank, Diagnosis::Cause cause, CoreIndex core, std::string what);

  Context& context_;
  JobTable& jobs_;
  Diagnoses& diagnoses_;
  Presence& presence_;
  TimeNs next_ = 0;
};

}  // namespace phub::server
