// Tracks ranks that are lost and may return (LOSS_POLICY_WAIT). A rank is lost while its lanes are
// silent, a lane that it had is missing, or (before it has lanes) its heartbeats are missing. The
// end of its Attend stream alone is no loss: the process attends again. The other ranks are
// notified of a loss, and wait_timeout starts. The same process returns when it sends heartbeats
// and opens its lanes again. With restart, a new process may take over the rank by joining
// (ranks/seats.h). In jobs that span racks, each rack tracks its own ranks and notifies the other
// racks. Owned by Control; under control's lock.
#pragma once

#include "server/control/context.h"
#include "server/control/jobs/diagnoses.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class Presence {
 public:
  Presence(Context& context, JobTable& jobs, Diagnoses& diagnoses, AbsenceListener& listener)
      : context_(context), jobs_(jobs), diagnoses_(diagnoses), listener_(listener) {}

  // Updates whether the rank is live or lost. Does nothing if the policy is not wait, or if the
  // rank has no place in the job.
  void CheckPresence(Job& job, Rank rank);
  void BeginAbsence(Job& job, Rank rank);
  void EndAbsence(Job& job, Rank rank, bool restarted);
  // The control port could not be reached from then until now: waits are extended by that time, and
  // the ranks are notified in turns.
  void ExtendAbsences(Job& job, TimeNs began);
  // Ends the job if a rank did not return in time. Not while the control port cannot be reached.
  void CheckWaiting(Job& job, TimeNs now);
  // Sends a newly attached rank the lost ranks that the job waits for, in turns. Ranks that are
  // lost or return meanwhile are reported to all.
  void SendAwaited(const Job& job, Rank to);

 private:
  // What an attached rank has been sent so far.
  struct Sending {
    Incarnation incarnation;
    Rank to;
    StreamId stream = 0;
    std::uint32_t own = 0;        // of this rack's ranks, those before this one are sent
    std::uint32_t elsewhere = 0;  // likewise of the job's ranks in other racks
  };
  void Continue(const Job& job, Sending sending);
  // SendAwaited() to this rack's rank `first` and all after it.
  void SendAwaitedToAll(const Job& job, std::uint32_t first);
  // False: the turn's work is done.
  bool SendMore(const Job& job, Sending& sending);

  Context& context_;
  JobTable& jobs_;
  Diagnoses& diagnoses_;
  AbsenceListener& listener_;
};

}  // namespace phub::server
