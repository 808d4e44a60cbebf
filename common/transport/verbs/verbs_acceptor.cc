#include "common/transport/verbs/verbs_acceptor.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/transport/pending_lanes.h"

namespace phub::transport {

bool VerbsAcceptor::Claims(std::span<const std::byte> first) const {
  wire::LaneHello hello;
  return wire::DecodeVerbsHello(first, hello);
}

absl::StatusOr<std::unique_ptr<VerbsConnection>> VerbsAcceptor::Make(const wire::LaneHello& hello,
                                                                     const wire::VerbsOffer& peer) {
  absl::StatusOr<VerbsLaneParts> parts = gate_.Parts(hello);
  if (!parts.ok()) return parts.status();
  auto made =
      VerbsConnection::Create(VerbsEnd::kDaemon, std::move(parts->queue), std::move(parts->domain),
                              std::move(parts->staging), parts->limits, random_);
  if (!made.ok()) return made.status();
  if (absl::Status status = (*made)->Connect(peer); !status.ok()) return status;
  return made;
}

LaneKind::Outcome VerbsAcceptor::Decide(Descriptor& socket, std::span<const std::byte> request,
                                        const std::string& origin, wire::LaneRefusal& refusal) {
  wire::LaneHello hello;
  wire::VerbsOffer peer;
  if (!wire::DecodeVerbsHello(request.first(wire::kLaneHelloBytes), hello) ||
      !wire::DecodeVerbsOffer(request.subspan(wire::kLaneHelloBytes), peer) ||
      peer.slot_count != 0 || peer.inbox_key == 0) {
    return Outcome::kForm;
  }
  const std::optional<std::uint8_t> version = CommonVersion(hello.version_min, hello.version_max);
  // A nonce is spent on admission only, so versions are settled before it is looked at.
  refusal = version ? gate_.Admit(hello, origin) : wire::LaneRefusal::kVersion;
  if (refusal != wire::LaneRefusal::kNone) return Outcome::kRefused;
  absl::StatusOr<std::unique_ptr<VerbsConnection>> connection = Make(hello, peer);
  if (!connection.ok()) {
    LogWarning("event=lane_failed transport=verbs rank={} core={} peer={} reason=\"{}\"",
               hello.rank.value, hello.core.value, origin, MessageOf(connection.status()));
    refusal = wire::LaneRefusal::kCapacity;
    return Outcome::kRefused;
  }
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kVerbsOfferBytes> answer;
  wire::EncodeLaneWelcome(WelcomeOf(*version), std::span(answer).first<wire::kLaneWelcomeBytes>());
  wire::EncodeVerbsOffer((*connection)->Offer(), std::span(answer).last<wire::kVerbsOfferBytes>());
  // Fits the empty buffer of a new socket. If the peer is gone, the lane will say so.
  [[maybe_unused]] const ssize_t put =
      send(socket.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  Gid gid;
  for (std::size_t i = 0; i < gid.size(); ++i) gid[i] = std::to_integer<std::uint8_t>(peer.gid[i]);
  const VerbsDevice& device = (*connection)->device();
  std::string description =
      fmt::format("{} {} from {}", device.name(), GidText(device.gid().gid), GidText(gid));
  (*connection)->SetSocket(std::move(socket), fmt::format("{} ({})", origin, GidText(gid)));
  gate_.Attach(hello, *std::move(connection), std::move(description));
  return Outcome::kAccepted;
}

}  // namespace phub::transport
