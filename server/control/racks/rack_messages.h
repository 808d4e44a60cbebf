// The daemons of other racks: envelopes to and from them, which message goes where, who of them is
// heard of, and what becomes of jobs whose messages were not taken. Owned by Control; under
// control's lock.
#pragma once

#include <deque>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/peer_network.h"
#include "server/control/racks/racks.h"

namespace phub::server {

class Barriers;
class Ending;
class JobTable;
class Loads;
class PeerLanes;
class PendingCalls;
class RackJobs;
class RackOpening;
class RackWaiting;
class TopologySurvey;

class RackMessages {
 public:
  RackMessages(Context& context, Racks& racks, JobTable& jobs, Barriers& barriers, Ending& ending,
               Loads& loads, PeerLanes& peer_lanes, PendingCalls& pending_calls,
               RackJobs& rack_jobs, RackOpening& opening, RackWaiting& rack_waiting,
               TopologySurvey& survey)
      : context_(context),
        racks_(racks),
        jobs_(jobs),
        barriers_(barriers),
        ending_(ending),
        loads_(loads),
        peer_lanes_(peer_lanes),
        pending_calls_(pending_calls),
        rack_jobs_(rack_jobs),
        opening_(opening),
        rack_waiting_(rack_waiting),
        survey_(survey) {}

  // Before the first Join or envelope. Outlives every job.
  void SetPeerNetwork(PeerNetwork& network) { racks_.network = &network; }
  // An envelope with `rack` and `messages` to be filled in.
  v1::PeerEnvelope MakeEnvelope(RackIndex to) const;
  // FAILED_PRECONDITION says in what the sender does not fit together with this daemon; counts it.
  absl::Status CheckEnvelope(const v1::PeerEnvelope& envelope);
  void OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer);
  void OnReceipt(RackIndex from, const v1::PeerReceipt& receipt);
  // That rack's daemon takes nothing from this one, and said why.
  void OnPeerRefusal(RackIndex from, std::string_view why);

  // To which rack a call that names one is passed on; nullopt: it is for this daemon.
  absl::StatusOr<std::optional<RackIndex>> RackToAsk(const v1::RackChoice& choice) const;

  void SendToRack(RackIndex to, Incarnation incarnation, v1::PeerMessage message);
  void SendToRacks(Incarnation incarnation, const v1::PeerMessage& message);
  // The job that is asked for is not opened.
  void RefuseRequest(RackIndex from, const v1::PeerMessage& message, const absl::Status& status);
  // The message waits until an older run of its job is over here.
  void Defer(RackIndex from, const v1::PeerMessage& message);
  // A job that nobody comes to must end some time: see Liveness::CheckAbandoned.
  void NoteIfNobodyIsHere(Job& job);

  void PollRacks(TimeNs now);
  // polled_at: when control was polled last.
  TimeNs NextRackTimer(TimeNs polled_at) const;

 private:
  void NoteDropped(RackIndex to, const DroppedMessages& dropped);
  void FailOverLostMessages(RackIndex rack, const char* what);
  // Jobs whose messages were dropped end.
  void CheckQueues();
  // What has waited and may be looked at again. Not requests while there is no topology, but for
  // those whose ranks were refused meanwhile: they are forgotten.
  std::deque<DeferredMessage> TakeDeferred();
  void OnRackRestarted(RackIndex rack);
  void HandlePeerMessage(RackIndex from, const v1::PeerMessage& message);
  void CheckRackLiveness(TimeNs now);

  Context& context_;
  Racks& racks_;
  JobTable& jobs_;
  Barriers& barriers_;
  Ending& ending_;
  Loads& loads_;
  PeerLanes& peer_lanes_;
  PendingCalls& pending_calls_;
  RackJobs& rack_jobs_;
  RackOpening& opening_;
  RackWaiting& rack_waiting_;
  TopologySurvey& survey_;
};

}  // namespace phub::server
