#include "server/control/racks/peer_offers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/printable.h"
#include "common/wire/lane_hello.h"

namespace phub::server {
namespace {

// The only transport that daemons without PeerConnect.offers know in addition to tcp.
constexpr std::string_view kSuperseded = "verbs";

struct Offer {
  std::string transport;
  std::vector<std::string> nonces;
  bool required = false;
};

std::vector<Offer> ReadOffers(const v1::PeerConnect& connect) {
  std::vector<Offer> offers;
  for (const v1::PeerLaneOffer& offer : connect.offers()) {
    offers.push_back(
        {offer.transport(), {offer.nonces().begin(), offer.nonces().end()}, offer.required()});
  }
  if (!offers.empty() || (connect.verbs_nonces().empty() && !connect.verbs_only())) return offers;
  offers.push_back({std::string(kSuperseded),
                    {connect.verbs_nonces().begin(), connect.verbs_nonces().end()},
                    connect.verbs_only()});
  return offers;
}

}  // namespace

std::string WhyNotOffered(const LaneTransport& transport, bool encryption_required) {
  using Peers = LaneTransport::Peers;
  if (transport.peers == Peers::kNever)
    return fmt::format("{} is not offered to other racks", transport.name);
  if (transport.peers == Peers::kUnavailable) return transport.why_no_peers;
  if (!encryption_required) return {};
  return fmt::format("the tenant requires encryption, which {} lanes do not support",
                     transport.name);
}

void AddOffer(const LaneTransport& transport, std::vector<std::string> nonces,
              v1::PeerConnect& connect) {
  const bool required = transport.peers == LaneTransport::Peers::kRequired;
  v1::PeerLaneOffer& offer = *connect.add_offers();
  offer.set_transport(transport.name);
  offer.set_required(required);
  for (std::string& nonce : nonces) {
    if (transport.name == kSuperseded) connect.add_verbs_nonces(nonce);
    offer.add_nonces(std::move(nonce));
  }
  if (transport.name == kSuperseded) connect.set_verbs_only(required);
}

bool OffersAreWhole(const v1::PeerConnect& connect) {
  const auto is_nonce = [](const std::string& bytes) {
    return bytes.size() == sizeof(wire::Nonce);
  };
  const auto is_whole = [&](const auto& nonces) {
    return (nonces.empty() || nonces.size() == connect.grants_size()) &&
           std::ranges::all_of(nonces, is_nonce);
  };
  return is_whole(connect.verbs_nonces()) &&
         std::ranges::all_of(connect.offers(), [&](const v1::PeerLaneOffer& offer) {
           return is_whole(offer.nonces());
         });
}

PeerOffers ChooseOffers(const LaneTransports& transports, const v1::PeerConnect& connect,
                        const PeerChoice& choice) {
  std::vector<Offer> offers = ReadOffers(connect);
  PeerOffers chosen;
  const auto note = [&](bool required, const std::string& name, std::string reason) {
    if (!chosen.missing.empty()) return;
    if (required) chosen.missing = name;
    if (required || chosen.reason.empty()) chosen.reason = std::move(reason);
  };
  std::vector<UsableOffer> optional;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    const LaneTransport& transport = transports[i];
    if (transport.peers == LaneTransport::Peers::kNever) continue;
    const auto offer = std::ranges::find(offers, transport.name, &Offer::transport);
    const bool is_offered = offer != offers.end() && !offer->nonces.empty();
    const bool required = transport.peers == LaneTransport::Peers::kRequired ||
                          (offer != offers.end() && offer->required);
    std::string reason = WhyNotOffered(transport, choice.encryption_required);
    if (reason.empty() && !is_offered)
      reason = fmt::format("{} does not offer {}", choice.peer, transport.name);
    if (reason.empty() && !required) reason = choice.why_avoided(transport.name);
    if (reason.empty()) {
      (required ? chosen.usable : optional)
          .push_back({static_cast<std::uint8_t>(i), std::move(offer->nonces)});
    } else {
      note(required, transport.name, std::move(reason));
    }
    chosen.offers_only = chosen.offers_only || required;
  }
  for (const Offer& offer : offers) {
    const bool known =
        std::ranges::find(transports, offer.transport, &LaneTransport::name) != transports.end();
    if (!offer.required || known) continue;
    const std::string name = Printable(offer.transport, kNameBytesMax);  // the peer chose it
    note(true, name, fmt::format("this daemon does not have {}", name));
  }
  if (!chosen.offers_only) chosen.usable = std::move(optional);
  return chosen;
}

}  // namespace phub::server
