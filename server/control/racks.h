// What control knows of the other racks, whatever the job. Data; the rules are in racks.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/control/control.h"
#include "server/control/peer_network.h"

namespace phub::server {

struct PeerLanePlace;  // rack_run.h

// A rank that waits until rack 0 has opened its job.
struct HeldJoin {
  v1::JoinRequest request;
  std::string peer_address;
  Answer<v1::JoinResponse> answer;
  TimeNs deadline = 0;
  std::optional<std::uint64_t> asked_instance;  // of rack 0's daemon, if it was asked for this one
};

// A plan that rack 0 made. Topology and bounds are the same as long as the daemon runs.
struct MadePlan {
  std::string text;  // phub.plan.v1
  double seconds = 0;
};

struct KnownRack {
  TimeNs last_heard = 0;                       // 0: never
  std::uint64_t instance = 0;                  // 0: unknown
  std::optional<std::uint64_t> next_sequence;  // none: it has said nothing yet
  bool missed_messages = false;                // of this daemon: jobs that span racks cannot go on
};

struct Racks {
  PeerNetwork* network = nullptr;
  std::vector<KnownRack> known;  // [rack]; empty: no racks are configured
  std::string configuration;
  std::uint64_t instance = 0;
  std::string last_refusal;  // of an envelope: logged once, though it is repeated for ever
  std::list<HeldJoin> held;
  // Messages that wait until an older run of their job is over here.
  std::deque<std::pair<RackIndex, v1::PeerMessage>> deferred;
  std::map<std::string, MadePlan> plans;  // by what was asked for: "auto", planners' names
};

// Over whatever has to be equal at the daemons of all racks; hexadecimal. Pure.
std::string HashOfRacks(const ControlOptions& options, std::size_t core_count);

// One message takes at most this: below what the other daemon's gRPC receives, with the envelope.
inline constexpr std::size_t kPeerMessageBytesMax = (4 << 20) - (64 << 10);
// As many of the first messages as one envelope takes: at least one, then about a MiB. How many.
// Pure.
std::size_t FillEnvelope(const std::deque<v1::PeerMessage>& messages, v1::PeerEnvelope& envelope);

}  // namespace phub::server
