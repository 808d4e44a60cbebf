// Ranks of other racks that are lost and may come back (LOSS_POLICY_WAIT). Each rack's daemon
// awaits its own ranks, and ends the job if one stays away (jobs/presence.h); it tells the others,
// so that their ranks, and administrators, know for whom they wait. Nothing is decided by it here.
// Owned by Control; under control's lock.
#pragma once

#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class RackMessages;

class RackWaiting final : public AbsenceListener {
 public:
  RackWaiting(Context& context, RackMessages& messages) : context_(context), messages_(messages) {}

  // Tells the other racks. Nothing for jobs of one rack.
  void OnAbsence(const Job& job, Rank rank) override;
  void OnReturn(const Job& job, Rank rank, bool restarted) override;
  void SendAwaited(const Job& job, EventSink& sink) const override;

  // What another rack says of its ranks. Of others' ranks, or in jobs that do not wait, it is
  // refused.
  void HandleRankAwaited(Job& job, RackIndex from, const v1::PeerRankAwaited& awaited);
  void HandleRankReturned(Job& job, RackIndex from, const v1::PeerRankReturned& returned);

 private:
  Context& context_;
  RackMessages& messages_;
};

// For administrators.
void DescribeLostElsewhere(const Job& job, TimeNs now, v1::JobInfo& info);
void DescribeLostElsewhere(const Job& job, TimeNs now, v1::ListStallsResponse& response);

}  // namespace phub::server
