// Places of ranks in a job: reserved by a join, sure once committed, taken over by a new process,
// given back or left. A worker joins every daemon of the rack, then commits at each: so a rank that
// one daemon refuses holds nothing at the others. In between its place is a lease, kept up by being
// heard of. Owned by Control; under control's lock.
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

  // Reserves the place for the process that joins, with a session of its own.
  void Seat(Job& job, const v1::JoinRequest& request, std::string_view peer_address);
  void Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer);
  void Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer);

  // Whether the process that joins may take the place of the one that has it, or had it.
  absl::Status CheckTakeOver(const Job& job, const v1::JoinRequest& request);
  // Ends the hold of the process before; the new one is seated next. If the place was committed,
  // the rank is awaited until the new process commits.
  absl::Status TakeOver(Job& job, Rank rank);

  // Takes back reservations that were not committed in time.
  void CheckLeases(TimeNs now);
  TimeNs NextLease(const Job& job) const;

 private:
  // Takes a reservation back: the seat is free, and a job that nobody is in ends; or it is lost, if
  // the rank was in the job before.
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
