// Ranks of other racks that are lost and may come back (LOSS_POLICY_WAIT). Each rack's daemon waits
// for its own ranks and ends the job if one does not return (jobs/presence.h). It notifies the
// other daemons, so that their ranks and administrators know which rank is awaited. This class
// decides nothing. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <optional>

#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

class RackMessages;
struct LostElsewhere;

class RackWaiting final : public AbsenceListener {
 public:
  RackWaiting(Context& context, RackMessages& messages) : context_(context), messages_(messages) {}

  // Notify the other racks. Jobs of one rack are ignored.
  void OnAbsence(const Job& job, Rank rank) override;
  void OnReturn(const Job& job, Rank rank, bool restarted) override;
  std::optional<v1::SessionEvent> FirstAwaitedFrom(const Job& job,
                                                   std::uint32_t rank) const override;

  // Messages from another rack about its ranks. Refused if the rank belongs to another rack or the
  // job does not wait for ranks.
  void HandleRankAwaited(Job& job, RackIndex from, const v1::PeerRankAwaited& awaited);
  void HandleRankReturned(Job& job, RackIndex from, const v1::PeerRankReturned& returned);

 private:
  Context& context_;
  RackMessages& messages_;
};

// For administrators: the lost ranks of other racks, one after the other, since a job may have a
// thousand.
struct LostRank {
  std::uint32_t rank = 0;  // in the job
  const LostElsewhere* lost = nullptr;
};
// The first one from this rank of the job on, if any.
std::optional<LostRank> FirstLostFrom(const Job& job, std::uint32_t rank);
void DescribeLost(const LostRank& lost, TimeNs now, v1::WorkerInfo& worker);
void DescribeLost(const LostRank& lost, TimeNs now, v1::StalledRank& waited_for);

}  // namespace phub::server
