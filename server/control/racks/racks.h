// What control knows of the other racks, whatever the job. Data, owned by Control; the rules are in
// the classes of this room.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/racks/peer_network.h"
#include "server/control/racks/surveyor.h"

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

// A plan that rack 0 made. Bounds are the same as long as the daemon runs; with another topology
// all plans are dropped.
struct MadePlan {
  std::string text;  // phub.plan.v1
  double seconds = 0;
};

struct KnownRack {
  TimeNs last_heard = 0;                       // 0: never
  std::uint64_t instance = 0;                  // 0: unknown
  std::optional<std::uint64_t> next_sequence;  // none: it has said nothing yet
  bool missed_messages = false;                // of this daemon: jobs that span racks cannot go on
  std::string refuses;                         // why it takes nothing of this daemon, as it says
  std::string is_refused;                      // why nothing of it is taken here
  // A lane to it over this transport was lost: until then another one is used.
  std::map<std::string, TimeNs> avoided_until;
};
inline constexpr std::size_t kPeerWordsMax = 1024;  // of what it says
// What is known to be wrong between the two, to go behind what comes of it: ": ..."; or nothing.
std::string DescribeTrouble(const KnownRack& rack);

// A message that waits until an older run of its job is over here.
struct DeferredMessage {
  RackIndex from{};
  v1::PeerMessage message;
  TimeNs since = 0;
};

// What rack 0 knows of the racks' topology, where it is measured; the rules are in
// topology_survey.h.
struct RackSurvey {
  Surveyor* surveyor = nullptr;
  std::optional<MeasuredTopology> measured;  // what new jobs are planned for
  bool begun = false;                        // once at least
  bool under_way = false;
  TimeNs awaited_since = 0;  // jobs wait, and some rack was never heard of; 0: no
  absl::Status failure;      // of the last one
};

struct Racks {
  PeerNetwork* network = nullptr;
  std::vector<KnownRack> known;  // [rack]; empty: no racks are configured
  std::string configuration;
  std::uint64_t instance = 0;
  std::string last_refusal;  // of an envelope: logged once, though it is repeated for ever
  std::list<HeldJoin> held;
  std::deque<DeferredMessage> deferred;
  TimeNs deferred_since = 0;              // while one is handled again
  std::map<std::string, MadePlan> plans;  // by what was asked for: "auto", planners' names
  RackSurvey survey;
};

// Over whatever has to be equal at the daemons of all racks; hexadecimal. Pure.
std::string HashOfRacks(const ControlOptions& options, std::size_t core_count);

// One message takes at most this: below what the other daemon's gRPC receives, with the envelope.
inline constexpr std::size_t kPeerMessageBytesMax = (4 << 20) - (64 << 10);

}  // namespace phub::server
