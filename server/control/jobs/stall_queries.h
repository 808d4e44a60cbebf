// Queries the core loops for the rounds of a job that wait, and the ranks that they wait for. Core
// loops answer with events. A query ends when every core loop has reported or it timed out. Owned
// by Control; under control's lock.
#pragma once

#include <functional>
#include <optional>

#include "server/control/context.h"
#include "server/control/jobs/job.h"

namespace phub::server {

class StallQueries {
 public:
  explicit StallQueries(Context& context) : context_(context) {}

  // `done` is called once, with all reports (complete()) or with those that arrived in time.
  // round, record: see StallReport::asked and StallReport::record.
  StallQuery& AskForStalls(Job& job, DurationNs timeout, std::function<void(StallQuery&)> done,
                           const std::optional<StallReport::Round>& round = {},
                           const std::optional<StallReport::Record>& record = {});
  void HandleStallsReported(Job& job, CoreIndex core, const Event& event);
  void CheckQueries(Job& job, TimeNs now);

 private:
  Context& context_;
};

}  // namespace phub::server
