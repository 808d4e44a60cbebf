// Ranks that have not joined their job yet. The ranks that wait for them are notified who is
// missing, after kFirstNotice and then every kNoticeInterval, and when the daemon refuses a missing
// rank. If the job has a join_timeout, it ends when the time is over. In a rack of several daemons
// only the anchor does this. Owned by Control; under control's lock.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "phub/v1/session.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/ending.h"

namespace phub::server {

class Arrivals {
 public:
  static constexpr DurationNs kFirstNotice = 5 * kSecond;
  static constexpr DurationNs kNoticeInterval = 30 * kSecond;

  Arrivals(Context& context, Ending& ending) : context_(context), ending_(ending) {}

  void Check(Job& job, TimeNs now);
  // When Check() has something to do; kNever if all ranks have joined.
  TimeNs NextTimer(const Job& job) const;
  // A process that wanted to be a rank of the running job was refused. The request's rank is that
  // of the whole job.
  void NoteRefusal(const Job& job, const v1::JoinRequest& request, const absl::Status& why) const;

 private:
  bool Concerns(const Job& job) const;
  void Notify(Job& job, TimeNs now) const;
  void EndInVain(Job& job);

  Context& context_;
  Ending& ending_;
};

}  // namespace phub::server
