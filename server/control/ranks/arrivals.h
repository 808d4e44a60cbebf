// Ranks that have not joined their job yet. The ranks that wait for them are notified who is
// missing, after kFirstNotice and then every kNoticeInterval, and when the daemon refuses a missing
// rank. Notices have hints, if it is likely that somebody made a mistake. If the job has a
// join_timeout, it ends when the time is over. In a rack of several daemons only the anchor does
// this. In jobs that span racks, see also racks/rack_arrivals.h. Owned by Control; under control's
// lock.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "phub/v1/session.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class Arrivals {
 public:
  static constexpr DurationNs kFirstNotice = 5 * kSecond;
  static constexpr DurationNs kNoticeInterval = 30 * kSecond;

  Arrivals(Context& context, JobTable& jobs, Ending& ending, ArrivalListener& listener)
      : context_(context), jobs_(jobs), ending_(ending), listener_(listener) {}

  void Check(Job& job, TimeNs now);
  // When Check() has something to do; kNever if all ranks have joined.
  TimeNs NextTimer(const Job& job) const;
  // A process that wanted to be a rank of the running job was refused. The request's rank is that
  // of the whole job.
  void NoteRefusal(Job& job, const v1::JoinRequest& request, const absl::Status& why);

 private:
  bool Concerns(const Job& job) const;
  void Notify(Job& job, TimeNs now);
  std::vector<std::string> HintsFor(const Job& job) const;
  std::string SimilarJob(const Job& job) const;
  void EndInVain(Job& job);

  Context& context_;
  JobTable& jobs_;
  Ending& ending_;
  ArrivalListener& listener_;
};

}  // namespace phub::server
