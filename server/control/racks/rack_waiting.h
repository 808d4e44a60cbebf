// Ranks of other racks that are lost and may come back (LOSS_POLICY_WAIT). Each rack's daemon
// awaits its own ranks, and ends the job if one stays away (wait.cc); the others are told, so that
// theirs, and administrators, know for whom they wait. Nothing is decided by it here.
//
// Under Control's lock, as all that is in State.
#pragma once

#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/state.h"

namespace phub::server {

// That a rank of this rack is lost, or not any more. Nothing, of jobs of one rack.
void TellRacksOfAbsence(Control::State& state, const Job& job, Rank rank);
void TellRacksOfReturn(Control::State& state, const Job& job, Rank rank, bool restarted);

// What another rack says of its ranks; of others', or in jobs that do not wait, it is refused.
void HandleRankAwaited(Control::State& state, Job& job, RackIndex from,
                       const v1::PeerRankAwaited& awaited);
void HandleRankReturned(Control::State& state, Job& job, RackIndex from,
                        const v1::PeerRankReturned& returned);

// To one who attends later, and to administrators.
void SendLostElsewhere(const Job& job, TimeNs now, EventSink& sink);
void DescribeLostElsewhere(const Job& job, TimeNs now, v1::JobInfo& info);
void DescribeLostElsewhere(const Job& job, TimeNs now, v1::ListStallsResponse& response);

}  // namespace phub::server
