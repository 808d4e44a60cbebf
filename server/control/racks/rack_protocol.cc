#include "server/control/racks/rack_protocol.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::server {
namespace {

using enum RackGuard;
using enum RackAction;

namespace of_run {
using enum RunState;
using enum RunEvent;
// clang-format off
constexpr RunRule kRules[] = {
    // opening: rack 0 starts the connection of lanes once every rack has the job. The other racks
    // may be asked to grant lanes before their core loops have the job.
    {kOpening,    kOpenedHere,    kAllOpened,  kConnecting, {kTellConnect, kGrantToAll}},
    {kOpening,    kOpenedHere,    kIsNotRack0, kConnecting, {}},
    {kConnecting, kLanesAttached, kIsNotRack0, kReady,      {kSayReady}},
    {kConnecting, kLanesAttached, kAllReady,   kStanding,   {kTellStart, kStand}},
    {kConnecting, kLanesAttached, kIsRack0,    kReady,      {}},
    {kReady,      kPeerReady,     kAllReady,   kStanding,   {kTellStart, kStand}},
    {kReady,      kStartReceived, kFromRack0,  kStanding,   {kStand}},
    // Lanes are granted as soon as rack 0 allows it. A rack that is ready has already granted all
    // of its lanes.
    {kOpening,    kConnectReceived, kFromRack0, kOpening,    {kGrantToAll}},
    {kConnecting, kConnectReceived, kFromRack0, kConnecting, {kGrantToAll}},
    // A start message that comes too early, too late or from the wrong rack is refused.
    {kOpening,    kStartReceived, kAlways, kOpening,    {kRefuse}},
    {kConnecting, kStartReceived, kAlways, kConnecting, {kRefuse}},
    {kReady,      kStartReceived, kAlways, kReady,      {kRefuse}},
    {kStanding,   kStartReceived, kAlways, kStanding,   {kRefuse}},
    // The opening takes too long.
    {kOpening,    kOpeningLate,   kAlways, kOpening,    {kFail}},
    {kConnecting, kOpeningLate,   kAlways, kConnecting, {kFail}},
    {kReady,      kOpeningLate,   kAlways, kReady,      {kFail}},

    // ranks: the run ends here once the ranks of all racks have left.
    {kAtWork, kRanksLeft,  kAlways,  kLeft,  {kSayLeft}},
    {kLeft,   kEndAllowed, kAllLeft, kEnded, {kEndInOrder}},

    // messages: the call that drops messages continues; the run fails after it.
    {kSpeaking,   kMessagesDropped, kAlways, kCrowdedOut, {}},
    {kCrowdedOut, kQueuesChecked,   kAlways, kCrowdedOut, {kFail}},

    // fault: the first lost lane counts. A more precise reason may arrive before the deferred fault
    // is due.
    {kSound,  kLaneLost,   kAlways,      kPutOff, {kPutFaultOff}},
    {kPutOff, kPutOffDue,  kDue,         kPutOff, {kFail}},
    {kPutOff, kPeerSilent, kIsPutOffFor, kPutOff, {kBringForward}},
    {kPutOff, kPeerSilent, kAlways,      kPutOff, {kFail}},
    {kSound,  kPeerSilent, kAlways,      kSound,  {kFail}},
    // Rack 0 forwards the failure that another rack reports: a third rack may not have known the
    // job when it received the report, and may have opened it later.
    {kSound,           kFailureReceived, kAlways,  kFailedElsewhere, {kFail}},
    {kPutOff,          kFailureReceived, kAlways,  kFailedElsewhere, {kFail}},
    {kSound,           kFailedHere,      kAlways,  kFailed,          {kTellFailed}},
    {kPutOff,          kFailedHere,      kAlways,  kFailed,          {kTellFailed}},
    {kFailedElsewhere, kFailedHere,      kIsRack0, kFailed,          {kTellFailed}},
    {kFailedElsewhere, kFailedHere,      kAlways,  kFailed,          {}},
};
// clang-format on
}  // namespace of_run

namespace of_peer {
using enum PeerState;
using enum PeerEvent;
// clang-format off
constexpr PeerRule kRules[] = {
    // opening
    {kAsked,  kSaysOpened, kAlways, kOpened, {}},
    {kAsked,  kSaysReady,  kAlways, kReady,  {kRaiseReady}},
    {kOpened, kSaysReady,  kAlways, kReady,  {kRaiseReady}},

    // lanes: between two racks, the one with the lower number grants and the other one dials, each
    // only once.
    {kNoLanes, kGrantAllowed, kIsHigherNeighbor, kGranted, {kGrantLanes}},
    {kNoLanes, kLanesOffered, kIsLower,          kDialled, {kDialLanes}},
    {kNoLanes, kLanesOffered, kAlways,           kNoLanes, {kRefuse}},
    {kGranted, kLanesOffered, kAlways,           kGranted, {kRefuse}},
    {kDialled, kLanesOffered, kAlways,           kDialled, {kRefuse}},

    // ranks
    {kAtWork, kSaysLeft, kAlways, kLeft, {}},

    // daemon: after a restart it no longer has the runs whose messages it sent before.
    {kUnheard, kSpoke,     kAlways,          kHeard, {}},
    {kHeard,   kSpoke,     kAlways,          kHeard, {}},
    {kHeard,   kRestarted, kIsOtherInstance, kHeard, {kFail}},
};
// clang-format on
}  // namespace of_peer

constexpr std::size_t RegionOf(RunState state) {
  if (state <= RunState::kStanding) return static_cast<std::size_t>(RunRegion::kOpening);
  if (state <= RunState::kEnded) return static_cast<std::size_t>(RunRegion::kRanks);
  if (state <= RunState::kCrowdedOut) return static_cast<std::size_t>(RunRegion::kMessages);
  return static_cast<std::size_t>(RunRegion::kFault);
}

constexpr std::size_t RegionOf(PeerState state) {
  if (state <= PeerState::kReady) return static_cast<std::size_t>(PeerRegion::kOpening);
  if (state <= PeerState::kDialled) return static_cast<std::size_t>(PeerRegion::kLanes);
  if (state <= PeerState::kLeft) return static_cast<std::size_t>(PeerRegion::kRanks);
  return static_cast<std::size_t>(PeerRegion::kDaemon);
}

// Checks that no rule leads into another region and that no event occurs in the rules of two
// regions.
template <typename Rule, std::size_t N>
constexpr bool KeepToRegions(const Rule (&rules)[N]) {
  for (const Rule& rule : rules) {
    if (RegionOf(rule.state) != RegionOf(rule.next)) return false;
    for (const Rule& other : rules) {
      if (rule.event == other.event && RegionOf(rule.state) != RegionOf(other.state)) return false;
    }
  }
  return true;
}
static_assert(KeepToRegions(of_run::kRules) && KeepToRegions(of_peer::kRules));

}  // namespace

constinit const RackRules kRackRules = {of_run::kRules, of_peer::kRules};

bool Has(const RackSteps& steps, RackAction action) {
  return std::ranges::any_of(steps, [&](const RackStep& step) { return step.action == action; });
}

RackProtocol::RackProtocol(RackIndex self, std::uint32_t racks, std::uint32_t racks_with_ranks,
                           std::uint64_t neighbors, std::uint64_t participants,
                           const RackRules& rules)
    : rules_(&rules),
      self_(self),
      neighbors_(neighbors),
      states_{RunState::kOpening, RunState::kAtWork, RunState::kSpeaking, RunState::kSound},
      peers_(racks, Peer{{PeerState::kAsked, PeerState::kNoLanes, PeerState::kAtWork,
                          PeerState::kUnheard}}) {
  PHUB_CHECK(self.value < racks && racks <= kRacksMax, "rack={} racks={}", self.value, racks);
  PHUB_CHECK((neighbors & ~participants) == 0, "neighbors={} participants={}", neighbors,
             participants);
  for (std::uint32_t rack = 0; rack < racks; ++rack) {
    auto& states = peers_[rack].states;
    const bool takes_part = (participants & exchange::RackBit(RackIndex{rack})) != 0;
    if (!takes_part) states[static_cast<std::size_t>(PeerRegion::kOpening)] = PeerState::kReady;
    if (!takes_part || rack >= racks_with_ranks) {
      states[static_cast<std::size_t>(PeerRegion::kRanks)] = PeerState::kLeft;
    }
  }
  if (self.value >= racks_with_ranks) {
    states_[static_cast<std::size_t>(RunRegion::kRanks)] = RunState::kLeft;
  }
}

RackSteps RackProtocol::On(RunEvent event, RackIndex rack, TimeNs time) {
  RackSteps steps;
  HandleRunEvent(event, {.rack = rack, .time = time}, steps);
  return steps;
}

RackSteps RackProtocol::OnPeer(RackIndex rack, PeerEvent event, std::uint64_t instance) {
  PHUB_CHECK(rack != self_ && rack.value < peers_.size(), "rack={}", rack.value);
  RackSteps steps;
  HandlePeerEvent(event, {.rack = rack, .instance = instance}, steps);
  return steps;
}

RackSteps RackProtocol::AddNeighbors(std::uint64_t racks) {
  neighbors_ |= racks;
  RackSteps steps;
  for (std::uint32_t rack = 0; rack < peers_.size(); ++rack) {
    if (rack != self_.value && (racks & exchange::RackBit(RackIndex{rack})) != 0)
      HandlePeerEvent(PeerEvent::kGrantAllowed, {.rack = RackIndex{rack}}, steps);
  }
  return steps;
}

void RackProtocol::HandleRunEvent(RunEvent event, const Said& said, RackSteps& steps) {
  for (const RunRule& rule : rules_->run) {
    RunState& state = states_[RegionOf(rule.state)];
    if (rule.event != event || rule.state != state || !Holds(rule.guard, said)) continue;
    state = rule.next;
    for (const RackAction action : rule.actions) Act(action, said, steps);
    return;
  }
}

void RackProtocol::HandlePeerEvent(PeerEvent event, const Said& said, RackSteps& steps) {
  Peer& peer = peers_[said.rack.value];
  for (const PeerRule& rule : rules_->peer) {
    PeerState& state = peer.states[RegionOf(rule.state)];
    if (rule.event != event || rule.state != state || !Holds(rule.guard, said)) continue;
    state = rule.next;
    for (const RackAction action : rule.actions) Act(action, said, steps);
    break;
  }
  if (event == PeerEvent::kSpoke) peer.instance = said.instance;
}

void RackProtocol::Act(RackAction action, const Said& said, RackSteps& steps) {
  switch (action) {
    case kNone: return;
    case kRaiseReady: return HandleRunEvent(RunEvent::kPeerReady, said, steps);
    case kGrantToAll:
      for (std::uint32_t rack = 0; rack < peers_.size(); ++rack) {
        if (rack == self_.value) continue;
        HandlePeerEvent(PeerEvent::kGrantAllowed, {.rack = RackIndex{rack}}, steps);
      }
      return;
    case kBringForward: put_off_due_ = said.time; return;
    case kPutFaultOff:
      put_off_for_ = said.rack;
      put_off_due_ = said.time;
      break;
    default: break;
  }
  steps.push_back({action, said.rack});
}

bool RackProtocol::Holds(RackGuard guard, const Said& said) const {
  const bool is_rack_0 = self_.value == 0;
  switch (guard) {
    case kAlways: return true;
    case kIsRack0: return is_rack_0;
    case kIsNotRack0: return !is_rack_0;
    case kAllOpened: return is_rack_0 && OthersAre(PeerRegion::kOpening, PeerState::kOpened);
    case kAllReady: return is_rack_0 && OthersAre(PeerRegion::kOpening, PeerState::kReady);
    case kAllLeft: return OthersAre(PeerRegion::kRanks, PeerState::kLeft);
    case kFromRack0: return said.rack.value == 0 && !is_rack_0;
    case kDue: return said.time >= put_off_due_;
    case kIsPutOffFor: return said.rack == put_off_for_;
    case kIsHigherNeighbor:
      return said.rack.value > self_.value && (neighbors_ & exchange::RackBit(said.rack)) != 0;
    case kIsLower: return said.rack.value < self_.value;
    case kIsOtherInstance: return said.instance != peers_[said.rack.value].instance;
  }
  return false;
}

// The states of a region are declared in the order in which they are reached.
bool RackProtocol::OthersAre(PeerRegion region, PeerState at_least) const {
  for (std::uint32_t rack = 0; rack < peers_.size(); ++rack) {
    if (rack != self_.value && peer(RackIndex{rack}, region) < at_least) return false;
  }
  return true;
}

bool RackProtocol::AllLeftBut(RackIndex rack) const {
  for (std::uint32_t other = 0; other < peers_.size(); ++other) {
    if (other == self_.value || other == rack.value) continue;
    if (peer(RackIndex{other}, PeerRegion::kRanks) < PeerState::kLeft) return false;
  }
  return left();
}

void RackProtocol::Forgive(DurationNs duration) { put_off_due_ += duration; }

bool RackProtocol::HasOpened(RackIndex rack) const {
  if (rack == self_) return !opening();
  return peer(rack, PeerRegion::kOpening) >= PeerState::kOpened;
}

bool RackProtocol::IsReady(RackIndex rack) const {
  if (rack == self_) return state(RunRegion::kOpening) >= RunState::kReady;
  return peer(rack, PeerRegion::kOpening) == PeerState::kReady;
}

std::optional<TimeNs> RackProtocol::put_off_due() const {
  if (state(RunRegion::kFault) != RunState::kPutOff) return std::nullopt;
  return put_off_due_;
}

}  // namespace phub::server
