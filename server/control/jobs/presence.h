// Ranks that are gone and may come back (LOSS_POLICY_WAIT). A rank is lost as long as its stream is
// broken, it is silent, or a lane that it had is missing; the other ranks are told, and a deadline
// runs. The same process comes back by attending, being heard of, and opening its lanes again. With
// restart, a new process may take the rank over by joining (ranks/seats.h). In jobs that span racks
// each rack does so for its own ranks, and tells the others. Owned by Control; under control's
// lock.
#pragma once

#include "server/control/context.h"
#include "server/control/jobs/diagnoses.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class Presence {
 public:
  Presence(Context& context, Diagnoses& diagnoses, AbsenceListener& listener)
      : context_(context), diagnoses_(diagnoses), listener_(listener) {}

  // Live or lost, as what is known of the rank says. Nothing under other policies than wait, or of
  // a rank without a place.
  void CheckPresence(Job& job, Rank rank);
  void BeginAbsence(Job& job, Rank rank);
  void EndAbsence(Job& job, Rank rank, bool restarted);
  // Ends the job over a rank that did not come back in time.
  void CheckWaiting(Job& job, TimeNs now);
  // Tells a rank that attends for whom the job waits.
  void SendAwaited(const Job& job, Rank to, EventSink& sink);

 private:
  Context& context_;
  Diagnoses& diagnoses_;
  AbsenceListener& listener_;
};

}  // namespace phub::server
