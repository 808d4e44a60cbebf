// Manages the seats of ranks in a job. A join reserves a seat and Commit makes it permanent. A seat
// can be returned, left, or taken over by a new process. A worker joins every daemon of the rack
// and then commits at each of them, so a rank that one daemon refuses keeps no seat at the others.
// Until the commit the seat is a lease, which counts from the last call of the session. Owned by
// Control; under control's lock.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/presence.h"
#include "server/control/jobs/sessions.h"
#include "server/control/lanes/rank_memories.h"
#include "server/control/ranks/barriers.h"

namespace phub::server {

class Seats {
 public:
  Seats(Context& context, JobTable& jobs, Sessions& sessions, Ending& ending, Diagnoses& diagnoses,
        PendingCalls& pending_calls, Presence& presence, Barriers& barriers,
        RankMemories& rank_memories, PeerRacks& peer_racks)
      : context_(context),
        jobs_(jobs),
        sessions_(sessions),
        ending_(ending),
        diagnoses_(diagnoses),
        pending_calls_(pending_calls),
        presence_(presence),
        barriers_(barriers),
        rank_memories_(rank_memories),
        peer_racks_(peer_racks) {}

  // Reserves the seat for the process that joins, and opens a session for it.
  void Seat(Job& job, const v1::JoinRequest& request, std::string_view peer_address);
  void Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer);
  void Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer);

  // Checks whether the process that joins may replace the current or former one.
  absl::Status CheckTakeOver(const Job& job, const v1::JoinRequest& request);
  // Ends the session of the old process; call Seat for the new one next. If the seat was committed,
  // the rank counts as lost until the new process commits.
  absl::Status TakeOver(Job& job, Rank rank);

  // Frees the seats whose reservations were not committed in time.
  void CheckLeases(TimeNs now);
  TimeNs NextLease(const Job& job) const;

 private:
  static void AnswerVerdict(Job& job, const std::string& verdict,
                            const Answer<v1::LeaveResponse>& answer);
  // Cancels a reservation. If the rank had committed the seat before, the rank is lost again
  // (LoseSeat). Otherwise the seat is free, and the job ends if it has no ranks.
  void FreeSeat(Job& job, Rank rank, const absl::Status& why);
  void LoseSeat(Job& job, Rank rank, const absl::Status& why);

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  Ending& ending_;
  Diagnoses& diagnoses_;
  PendingCalls& pending_calls_;
  Presence& presence_;
  Barriers& barriers_;
  RankMemories& rank_memories_;
  PeerRacks& peer_racks_;
};

}  // namespace phub::server
