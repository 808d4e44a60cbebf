// Communication with the daemons of other racks: sends and receives envelopes, passes each message
// to the class that handles it, and fails jobs whose messages were lost.
// Owned by Control; under control's lock.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/deferred_messages.h"
#include "server/control/racks/held_joins.h"
#include "server/control/racks/known_racks.h"
#include "server/control/racks/peer_network.h"
#include "server/control/racks/rack_liveness.h"

namespace phub::server {

class Barriers;
class Ending;
class JobTable;
class Loads;
class PeerLanes;
class PendingCalls;
class RackArrivals;
class RackConflicts;
class RackGroups;
class RackJobs;
class RackLateRounds;
class RackOpening;
class RackWaiting;
class TopologySurvey;
struct Job;

class RackMessages {
 public:
  RackMessages(Context& context, KnownRacks& known, DeferredMessages& deferred, HeldJoins& held,
               JobTable& jobs, Barriers& barriers, Ending& ending, Loads& loads,
               PeerLanes& peer_lanes, PendingCalls& pending_calls, RackJobs& rack_jobs,
               RackOpening& opening, RackWaiting& rack_waiting, RackLateRounds& late_rounds,
               RackConflicts& conflicts, RackArrivals& arrivals, RackGroups& rack_groups,
               TopologySurvey& survey)
      : context_(context),
        known_(known),
        deferred_(deferred),
        held_(held),
        jobs_(jobs),
        barriers_(barriers),
        ending_(ending),
        loads_(loads),
        peer_lanes_(peer_lanes),
        pending_calls_(pending_calls),
        rack_jobs_(rack_jobs),
        opening_(opening),
        rack_waiting_(rack_waiting),
        late_rounds_(late_rounds),
        conflicts_(conflicts),
        arrivals_(arrivals),
        rack_groups_(rack_groups),
        survey_(survey) {}

  // To be called before the first Join or envelope. The network must outlive every job.
  void SetPeerNetwork(PeerNetwork& network) { network_ = &network; }
  // An envelope whose header is filled in and which has no messages yet.
  v1::PeerEnvelope MakeEnvelope(RackIndex to) const;
  // FAILED_PRECONDITION if the sender is not compatible with this daemon; the message says why, and
  // the refusal is counted.
  absl::Status CheckEnvelope(const v1::PeerEnvelope& envelope);
  void OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer);
  // The same without a copy of the envelope.
  void OnOwnedEnvelope(const std::shared_ptr<const v1::PeerEnvelope>& envelope,
                       Answer<v1::PeerReceipt> answer);
  void OnReceipt(RackIndex from, const v1::PeerReceipt& receipt);
  // That rack's daemon refuses this daemon's messages; `why` is its reason.
  void OnPeerRefusal(RackIndex from, std::string_view why) { known_.NoteRefusal(from, why); }

  // The rack to which to forward a call that names one; nullopt: this daemon handles it.
  absl::StatusOr<std::optional<RackIndex>> RackToAsk(const v1::RackChoice& choice) const;

  void SendToRack(RackIndex to, Incarnation incarnation, v1::PeerMessage message);
  // The same for a message that has its incarnation already.
  void SendShared(RackIndex to, const SharedPeerMessage& message);
  // To the racks that take part in the job. REQUIRES: the job spans racks.
  void SendToRacks(const Job& job, v1::PeerMessage message);
  void ShareWithRacks(const Job& job, const SharedPeerMessage& message);
  // Answers a request to open a job with the reason why it is not opened.
  void RefuseRequest(RackIndex from, const v1::PeerMessage& message, const absl::Status& status);
  // Keeps the message until an older run of its job has ended here.
  void Defer(RackIndex from, const v1::PeerMessage& message);
  // A job without ranks here must end some time: see Liveness::CheckAbandoned.
  void NoteIfNobodyIsHere(Job& job);

  void PollRacks(TimeNs now);
  // polled_at: when Control was last polled.
  TimeNs NextRackTimer(TimeNs polled_at) const;

 private:
  void NoteDropped(RackIndex to, const DroppedMessages& dropped);
  void FailOverLostMessages(RackIndex rack, const char* what);
  // Fails jobs whose messages were dropped.
  void CheckQueues();
  void HandleDeferred(TimeNs now);
  void OnRackRestarted(RackIndex rack);
  // owner: keeps the message, which may be used after the call; null: it was deferred.
  void HandlePeerMessage(RackIndex from, const v1::PeerMessage& message,
                         const std::shared_ptr<const void>& owner = nullptr);

  Context& context_;
  KnownRacks& known_;
  DeferredMessages& deferred_;
  HeldJoins& held_;
  JobTable& jobs_;
  Barriers& barriers_;
  Ending& ending_;
  Loads& loads_;
  PeerLanes& peer_lanes_;
  PendingCalls& pending_calls_;
  RackJobs& rack_jobs_;
  RackOpening& opening_;
  RackWaiting& rack_waiting_;
  RackLateRounds& late_rounds_;
  RackConflicts& conflicts_;
  RackArrivals& arrivals_;
  RackGroups& rack_groups_;
  TopologySurvey& survey_;
  PeerNetwork* network_ = nullptr;
  RackLiveness liveness_{context_, known_, jobs_, ending_};
};

}  // namespace phub::server
