// The protocol by which racks open, run and end one job together, as one rack sees it: an event in,
// actions out. The rules are two tables in rack_protocol.cc, one for the run and one for each peer
// rack. Pure: no I/O, no clock, no messages. The caller feeds the events and does what the actions
// say; queues that all jobs share stay outside, and their outcomes are events.
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
// An event belongs to one region. Owned by the job's RackRun; under control's lock.
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
  kConnecting,  // lanes between racks are made
  kReady,       // this rack has all its lanes, and rack 0 knows or is rack 0
  kStanding,    // every rack is ready: ranks' calls to Join are answered
  kAtWork,      // some rank of this rack has not left
  kLeft,        // all have; partial sums of other racks may still pass through this one
  kEnded,
  kSpeaking,
  kCrowdedOut,  // messages of the run were dropped: the only one that is still sent is `failed`
  kSound,
  kPutOff,  // a lane was lost; why is probably on its way here by another connection
  kFailedElsewhere,
  kFailed,
};
enum class RunEvent : std::uint8_t {
  kOpenedHere,       // the core loops of this daemon have the job
  kConnectReceived,  // rack 0 says that every rack has the job
  kLanesAttached,    // every lane of this rack is attached
  kPeerReady,        // some peer became ready; raised by the peer's table
  kStartReceived,
  kRanksLeft,        // all ranks here
  kEndAllowed,       // no diagnosis is under way
  kMessagesDropped,  // of this run
  kQueuesChecked,    // outside of any call, so the run may fail
  kLaneLost,         // to `rack`, or it could not be made; the fault's time comes at `time`
  kPeerSilent,       // the daemon of `rack`; it is `time`
  kPutOffDue,        // if it is by `time`
  kOpeningLate,
  kFailureReceived,  // another rack says that the job has failed
  kFailedHere,       // the job has failed here, for whatever reason
};

enum class PeerRegion : std::uint8_t { kOpening, kLanes, kRanks, kDaemon, kCount };
enum class PeerState : std::uint8_t {
  kAsked,
  kOpened,
  kReady,
  kNoLanes,
  kGranted,  // the peer has the nonces
  kDialled,  // this rack has used those of the peer
  kAtWork,
  kLeft,
  kUnheard,  // its daemon has said nothing of this run
  kHeard,
};
enum class PeerEvent : std::uint8_t {
  kSaysOpened,
  kSaysReady,
  kGrantAllowed,  // raised by the run's table
  kLanesOffered,  // nonces of the peer came
  kSaysLeft,
  kSpoke,      // its daemon, as `instance`, of this run
  kRestarted,  // its daemon is now `instance`
};

enum class RackAction : std::uint8_t {
  kNone,
  kTellConnect,  // everybody, that lanes may be granted
  kGrantToAll,   // inside: kGrantAllowed for every peer
  kGrantLanes,   // to `rack`
  kDialLanes,    // that `rack` granted
  kRaiseReady,   // inside: kPeerReady
  kSayReady,     // to rack 0
  kTellStart,    // everybody
  kStand,
  kSayLeft,  // to everybody
  kEndInOrder,
  kPutFaultOff,
  kBringForward,  // inside: the fault that is put off is due now
  kTellFailed,    // everybody
  kFail,          // with the cause that the event has
  kRefuse,        // the peer may not say so, or not now
};

// What must be true for a row to count, besides its state and event.
enum class RackGuard : std::uint8_t {
  kAlways,
  kIsRack0,
  kIsNotRack0,
  kAllOpened,  // at rack 0, and every other rack has the job
  kAllReady,   // at rack 0, and every other rack is ready
  kFromRack0,
  kAllLeft,  // the ranks of every other rack
  kDue,
  kIsPutOffFor,       // it is this rack's lane that was lost
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
// Of the rows with the state and the event, the first whose guard holds counts. No such row: the
// event changes nothing.
struct RackRules {
  std::span<const RunRule> run;
  std::span<const PeerRule> peer;
};
extern const RackRules kRackRules;

struct RackStep {
  RackAction action = RackAction::kNone;
  RackIndex rack{};  // whom it concerns, where the action says so
};
using RackSteps = std::vector<RackStep>;
bool Has(const RackSteps& steps, RackAction action);

class RackProtocol {
 public:
  // neighbors: a bit per rack that shares lanes with this one. Racks from racks_with_ranks on have
  // no ranks (aggregators). rules: others only in tests.
  RackProtocol(RackIndex self, std::uint32_t racks, std::uint32_t racks_with_ranks,
               std::uint64_t neighbors, const RackRules& rules = kRackRules);

  RackSteps On(RunEvent event, RackIndex rack = {}, TimeNs time = 0);
  RackSteps OnPeer(RackIndex rack, PeerEvent event, std::uint64_t instance = 0);
  // Nobody was heard of for so long, and that was this daemon's own fault.
  void Forgive(DurationNs duration);

  RunState state(RunRegion region) const { return states_[static_cast<std::size_t>(region)]; }
  PeerState peer(RackIndex rack, PeerRegion region) const {
    return peers_[rack.value].states[static_cast<std::size_t>(region)];
  }
  bool opening() const { return state(RunRegion::kOpening) == RunState::kOpening; }
  bool connecting() const { return state(RunRegion::kOpening) == RunState::kConnecting; }
  bool standing() const { return state(RunRegion::kOpening) == RunState::kStanding; }
  bool left() const { return state(RunRegion::kRanks) != RunState::kAtWork; }
  bool crowded_out() const { return state(RunRegion::kMessages) == RunState::kCrowdedOut; }
  // Rack 0: whether that rack has the job; and all its lanes.
  bool HasOpened(RackIndex rack) const;
  bool IsReady(RackIndex rack) const;
  // When the job fails by the fault that is put off, if one is.
  std::optional<TimeNs> put_off_due() const;

 private:
  struct Peer {
    std::array<PeerState, static_cast<std::size_t>(PeerRegion::kCount)> states;
    std::uint64_t instance = 0;
  };
  struct Said {  // with the event
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
  std::vector<Peer> peers_;  // [rack]; the own one is not used
  RackIndex put_off_for_{};
  TimeNs put_off_due_ = 0;
};

}  // namespace phub::server
