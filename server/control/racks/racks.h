// What control knows of the other racks, independent of jobs. Data, owned by Control; the rules are
// in the classes of this folder.
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

// A rank that waits for rack 0 to open its job.
struct HeldJoin {
  v1::JoinRequest request;
  std::string peer_address;
  Answer<v1::JoinResponse> answer;
  TimeNs deadline = 0;
  // The instance of rack 0's daemon to which the request to open the job was sent.
  std::optional<std::uint64_t> asked_instance;
};

// A plan that rack 0 made. The planners' limits do not change while the daemon runs. When the
// topology changes, all plans are dropped.
struct MadePlan {
  std::string text;  // phub.plan.v1
  double seconds = 0;
};

struct KnownRack {
  TimeNs last_heard = 0;                       // 0: never
  std::uint64_t instance = 0;                  // 0: unknown
  std::optional<std::uint64_t> next_sequence;  // none: no envelope has arrived yet
  bool missed_messages = false;                // from this daemon; jobs that span racks must fail
  std::string refuses;     // why it refuses this daemon's messages, in its own words
  std::string is_refused;  // why this daemon refuses its messages
  // By transport: a lane over it was lost, so another one is used until then.
  std::map<std::string, TimeNs> avoided_until;
};
inline constexpr std::size_t kPeerWordsMax = 1024;  // limit for its refusals
// A known problem between the two daemons, to append to an error: " (...)", or nothing.
std::string DescribeTrouble(const KnownRack& rack);

// A message that waits until an older run of its job has ended here.
struct DeferredMessage {
  RackIndex from{};
  v1::PeerMessage message;
  TimeNs since = 0;
};

// What rack 0 knows of the racks' topology if it is measured; the rules are in topology_survey.h.
struct RackSurvey {
  Surveyor* surveyor = nullptr;
  std::optional<MeasuredTopology> measured;  // new jobs are planned for this topology
  bool begun = false;                        // at least one survey was begun
  bool under_way = false;
  TimeNs awaited_since = 0;  // since when jobs wait for a rack that is not connected yet; 0: none
  absl::Status failure;      // why the last survey failed
};

struct Racks {
  PeerNetwork* network = nullptr;
  std::vector<KnownRack> known;  // [rack]; empty: no racks are configured
  std::string configuration;
  std::uint64_t instance = 0;
  std::string last_refusal;  // why an envelope was refused; repetitions are not logged
  std::list<HeldJoin> held;
  std::deque<DeferredMessage> deferred;
  TimeNs deferred_since = 0;              // nonzero while a deferred message is handled again
  std::map<std::string, MadePlan> plans;  // by request: "auto" or a planner's name
  RackSurvey survey;
};

// A hash, in hexadecimal, over everything that must be equal at the daemons of all racks. Pure
// function.
std::string HashOfRacks(const ControlOptions& options, std::size_t core_count);

// Maximum size of a message; with its envelope it stays below the limit of the other daemon's gRPC.
inline constexpr std::size_t kPeerMessageBytesMax = (4 << 20) - (64 << 10);

}  // namespace phub::server
