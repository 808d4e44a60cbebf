// The protocol by which racks open, run and end a job together, from the view of one rack. It turns
// events into actions. Two tables in rack_protocol.cc contain the rules, one for the run and one
// for each peer rack. Pure: no I/O, no clock, no messages. The caller feeds in events and performs
// the actions. The queues that all jobs share are outside; their results are events.
//
// A run is in one state of each region, and so is each peer rack:
//
//   run    opening   kOpening -> kConnecting -> kReady -> kStanding
//          ranks     kAtWork -> kLeft -> kEnded
//          messages  kSpeaking -> kCrowdedOut
//          fault     kSound -> kPutOff, kFailedElsewhere -> kFailed
//   peer   opening   kAsked -> kOpened -> kReady               (known to rack 0 only)
//          lanes     kNoLanes -> kGranted or kDialled
//          ranks     kAtWork -> kLeft
//          daemon    kUnheard -> kHeard
//
// Each event belongs to one region. Owned by the job's RackRun; under control's lock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

enum class RunRegion : std::uint8_t { kOpening, kRanks, kMessages, kFault, kCount };
enum class RunState : std::uint8_t {
  kOpening,     // rack 0: some rack does not have the job yet; others: the core loops do not
  kConnecting,  // lanes between racks are being opened
  kReady,       // this rack has all its lanes and has reported it to rack 0
  kStanding,    // every rack is ready; ranks' calls to Join are answered
  kAtWork,      // some rank of this rack has not left
  kLeft,        // all ranks have left; other racks' partial sums may still pass through
  kEnded,
  kSpeaking,
  kCrowdedOut,  // messages of the run were dropped; only `failed` is still sent
  kSound,
  kPutOff,  // a lane was lost; the reason will probably arrive over another connection
  kFailedElsewhere,
  kFailed,
};
enum class RunEvent : std::uint8_t {
  kOpenedHere,       // the core loops of this daemon have the job
  kConnectReceived,  // rack 0 reports that every rack has the job
  kLanesAttached,    // every lane of this rack is attached
  kPeerReady,        // some peer became ready; raised by the peer's table
  kStartReceived,
  kRanksLeft,        // all ranks of this rack
  kEndAllowed,       // no diagnosis is in progress
  kMessagesDropped,  // messages of this run
  kQueuesChecked,    // outside of any call, so the run may fail
  kLaneLost,         // the lane to `rack`, or it could not be opened; the run fails at `time`
  kPeerSilent,       // the daemon of `rack` is silent; it is `time` now
  kPutOffDue,        // it is `time` now, and a deferred fault may be due
  kOpeningLate,
  kFailureReceived,  // another rack reports that the job has failed
  kFailedHere,       // the job has failed here, for any reason
};

enum class PeerRegion : std::uint8_t { kOpening, kLanes, kRanks, kDaemon, kCount };
enum class PeerState : std::uint8_t {
  kAsked,
  kOpened,
  kReady,
  kNoLanes,
  kGranted,  // the peer has the nonces
  kDialled,  // this rack has dialled with the peer's nonces
  kAtWork,
  kLeft,
  kUnheard,  // its daemon has sent no message of this run
  kHeard,
};
enum class PeerEvent : std::uint8_t {
  kSaysOpened,
  kSaysReady,
  kGrantAllowed,  // raised by the run's table
  kLanesOffered,  // nonces of the peer arrived
  kSaysLeft,
  kSpoke,      // its daemon (`instance`) sent a message of this run
  kRestarted,  // its daemon is now `instance`
};

enum class RackAction : std::uint8_t {
  kNone,
  kTellConnect,  // tell all racks that lanes may be granted
  kGrantToAll,   // internal: kGrantAllowed for every peer
  kGrantLanes,   // grant lanes to `rack`
  kDialLanes,    // dial the lanes that `rack` granted
  kRaiseReady,   // internal: kPeerReady
  kSayReady,     // tell rack 0 that this rack is ready
  kTellStart,    // tell all racks to start
  kStand,        // mark the job as ready
  kSayLeft,      // tell all racks that this rack's ranks have left
  kEndInOrder,
  kPutFaultOff,   // keep the fault and fail with it later
  kBringForward,  // internal: the deferred fault is due now
  kTellFailed,    // tell all racks that the job has failed
  kFail,          // fail with the event's cause
  kRefuse,        // the peer may not send this, or not now
};

// A further condition for a row to apply, in addition to its state and event.
enum class RackGuard : std::uint8_t {
  kAlways,
  kIsRack0,
  kIsNotRack0,
  kAllOpened,  // at rack 0, and every other rack has the job
  kAllReady,   // at rack 0, and every other rack is ready
  kFromRack0,
  kAllLeft,  // the ranks of all other racks have left
  kDue,
  kIsPutOffFor,       // the deferred fault is the loss of a lane to `rack`
  kIsHigherNeighbor,  // the peer
  kIsLower,           // the peer
  kIsOtherInstance,
};

template <typename State, typename Event>
struct RackRule {
  State state;
  Event event;
  RackGuard guard;
  State next;
  std::array<RackAction, 2> actions;
};
using RunRule = RackRule<RunState, RunEvent>;
using PeerRule = RackRule<PeerState, PeerEvent>;
// The first row that has the state and the event and whose guard holds applies. If no row
// applies, the event changes nothing.
struct RackRules {
  std::span<const RunRule> run;
  std::span<const PeerRule> peer;
};
extern const RackRules kRackRules;

struct RackStep {
  RackAction action = RackAction::kNone;
  RackIndex rack{};  // the rack that the action concerns, if any
};
using RackSteps = std::vector<RackStep>;
bool Has(const RackSteps& steps, RackAction action);

class RackProtocol {
 public:
  // neighbors: a bit per rack that shares lanes with this one. participants: a bit per rack that
  // takes part in the run; nobody waits for the others. Racks with numbers from
  // racks_with_ranks on have no ranks (aggregators). rules: only tests pass others.
  RackProtocol(RackIndex self, std::uint32_t racks, std::uint32_t racks_with_ranks,
               std::uint64_t neighbors, std::uint64_t participants,
               const RackRules& rules = kRackRules);

  RackSteps On(RunEvent event, RackIndex rack = {}, TimeNs time = 0);
  RackSteps OnPeer(RackIndex rack, PeerEvent event, std::uint64_t instance = 0);
  // The run needs lanes to these racks, too, from now on: a bit per rack.
  RackSteps AddNeighbors(std::uint64_t racks);
  // Extends the deadline of a deferred fault: this daemon itself was blocked for that long, and
  // heard no one.
  void Forgive(DurationNs duration);

  RunState state(RunRegion region) const { return states_[static_cast<std::size_t>(region)]; }
  PeerState peer(RackIndex rack, PeerRegion region) const {
    return peers_[rack.value].states[static_cast<std::size_t>(region)];
  }
  bool opening() const { return state(RunRegion::kOpening) == RunState::kOpening; }
  bool connecting() const { return state(RunRegion::kOpening) == RunState::kConnecting; }
  bool standing() const { return state(RunRegion::kOpening) == RunState::kStanding; }
  bool left() const { return state(RunRegion::kRanks) != RunState::kAtWork; }
  // The ranks of all racks have left, as far as known, except that rack's.
  bool AllLeftBut(RackIndex rack) const;
  bool crowded_out() const { return state(RunRegion::kMessages) == RunState::kCrowdedOut; }
  // At rack 0: whether that rack has the job, and whether it has all its lanes.
  bool HasOpened(RackIndex rack) const;
  bool IsReady(RackIndex rack) const;
  // When the job fails with the deferred fault, if there is one.
  std::optional<TimeNs> put_off_due() const;

 private:
  struct Peer {
    std::array<PeerState, static_cast<std::size_t>(PeerRegion::kCount)> states;
    std::uint64_t instance = 0;
  };
  struct Said {  // the arguments of an event
    RackIndex rack{};
    TimeNs time = 0;
    std::uint64_t instance = 0;
  };
  bool Holds(RackGuard guard, const Said& said) const;
  bool OthersAre(PeerRegion region, PeerState at_least) const;
  void HandleRunEvent(RunEvent event, const Said& said, RackSteps& steps);
  void HandlePeerEvent(PeerEvent event, const Said& said, RackSteps& steps);
  void Act(RackAction action, const Said& said, RackSteps& steps);

  const RackRules* rules_;
  RackIndex self_;
  std::uint64_t neighbors_;
  std::array<RunState, static_cast<std::size_t>(RunRegion::kCount)> states_;
  std::vector<Peer> peers_;  // [rack]; this rack's own entry is unused
  RackIndex put_off_for_{};
  TimeNs put_off_due_ = 0;
};

}  // namespace phub::server
