// Asks the core loops which rounds of a job wait, and for whom. Answers come as events; a question
// is answered when every core loop has reported, or its time is over. Owned by Control; under
// control's lock.
#pragma once

#include <functional>

#include "server/control/context.h"
#include "server/control/jobs/job.h"

namespace phub::server {

class StallQueries {
 public:
  explicit StallQueries(Context& context) : context_(context) {}

  // done: called once, with all reports (complete()), or with those that came within `timeout`.
  StallQuery& AskForStalls(Job& job, DurationNs timeout, std::function<void(StallQuery&)> done);
  void HandleStallsReported(Job& job, CoreIndex core, const Event& event);
  void CheckQueries(Job& job, TimeNs now);

 private:
  Context& context_;
};

}  // namespace phub::server
