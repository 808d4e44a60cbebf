// What control knows of the other racks, whatever the job. Data; the rules are in racks.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
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
};

struct KnownRack {
  TimeNs last_heard = 0;       // 0: never
  std::uint64_t instance = 0;  // 0: unknown
  std::uint64_t next_sequence = 0;
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
};

// Over whatever has to be equal at the daemons of all racks; hexadecimal. Pure.
std::string HashOfRacks(const ControlOptions& options, std::size_t core_count);

}  // namespace phub::server
