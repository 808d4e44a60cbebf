// Which transports the lanes between two racks may use. The daemon that grants lanes adds its
// offers to v1::PeerConnect, and the daemon that dials chooses among them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "phub/v1/peer.pb.h"
#include "server/control/lane_transport.h"

namespace phub::server {

// Empty: this daemon offers the transport to other racks. Otherwise why it does not.
std::string WhyNotOffered(const LaneTransport& transport, bool encryption_required);

// Adds the offer of a transport, with one nonce (bytes) for each lane that is granted.
void AddOffer(const LaneTransport& transport, std::vector<std::string> nonces,
              v1::PeerConnect& connect);
// Every offer has a nonce of the right size for each of the grants.
bool OffersAreWhole(const v1::PeerConnect& connect);

struct UsableOffer {
  std::uint8_t transport_index = 0;
  std::vector<std::string> nonces;  // [grant]
};
struct PeerOffers {
  std::vector<UsableOffer> usable;  // in the order in which they are tried, before tcp
  bool offers_only = false;         // one daemon requires a transport: tcp is not tried
  // A transport that one of the two requires and the other one does not have; empty: none.
  std::string missing;
  std::string reason;  // why a transport cannot be used; of `missing` if there is one
};

struct PeerChoice {
  std::string_view peer;  // "rack 2 (node7:7700)"
  bool encryption_required = false;
  // Empty: no lane over this transport was lost lately. Otherwise what happened. A transport that
  // is required is used all the same.
  std::function<std::string(const std::string& transport)> why_avoided;
};
PeerOffers ChooseOffers(const LaneTransports& transports, const v1::PeerConnect& connect,
                        const PeerChoice& choice);

}  // namespace phub::server
