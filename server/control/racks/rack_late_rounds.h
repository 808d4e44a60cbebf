// Rounds across racks that take much longer than usual. The daemon of a rack that waits asks the
// other racks which of their ranks have not pushed the round, and notifies its own ranks of the
// answers. Ranks of the same rack are ranks/late_rounds.h's. Owned by Control; under control's
// lock.
#pragma once

#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/jobs/stall_queries.h"

namespace phub::server {

class RackMessages;

class RackLateRounds final : public LateRoundListener {
 public:
  RackLateRounds(Context& context, StallQueries& stall_queries, RackMessages& messages)
      : context_(context), stall_queries_(stall_queries), messages_(messages) {}

  // Asks the other racks. Jobs of one rack are ignored.
  void OnRoundWaits(Job& job, const StallReport::Round& round, DurationNs usual) override;

  // Another rack asks. Not answered if no live rank is missing (ranks that are lost or have not
  // joined are reported in other ways), or while core loops owe many reports: the other rack asks
  // again.
  void HandleQuestion(Job& job, RackIndex from, const v1::PeerRoundWaits& waits);
  // Another rack's answer. Ignored if it is not about the round of the last question; refused if it
  // names ranks of another rack.
  void HandleAnswer(Job& job, RackIndex from, const v1::PeerRoundLate& late);

 private:
  Context& context_;
  StallQueries& stall_queries_;
  RackMessages& messages_;
};

}  // namespace phub::server
