// Ranks that have not joined a job that spans racks. Each rack's daemon knows which of its own
// ranks are missing, and whom it has refused (ranks/arrivals.h). It reports them to the other
// racks, whose ranks wait for them, too. Ranks get one notice about the missing ranks of all racks.
// Daemons of the previous version ignore the reports. Owned by Control; under control's lock.
#pragma once

#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class RackMessages;

class RackArrivals final : public ArrivalListener {
 public:
  // How long a notice waits for the reports of other racks. Their jobs are a little older or newer.
  static constexpr DurationNs kReportsAwaited = 300 * kMillisecond;

  RackArrivals(Context& context, RackMessages& messages) : context_(context), messages_(messages) {}

  bool OnMissing(Job& job, const v1::RanksMissing& missing) override;
  void OnRefused(const Job& job, const v1::RankRefused& refused) override;

  // Reports of another rack. Refused if they name ranks of another rack.
  void HandleMissing(Job& job, RackIndex from, const v1::RanksMissing& missing);
  void HandleRefused(Job& job, RackIndex from, const v1::RankRefused& refused);

  void Check(Job& job, TimeNs now);
  static TimeNs NextTimer(const Job& job);

 private:
  Context& context_;
  RackMessages& messages_;
};

}  // namespace phub::server
