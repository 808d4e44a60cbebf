#include "common/transport/verbs/verbs_dial.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/base/status_text.h"
#include "common/transport/lane_request.h"
#include "common/transport/tcp/dial_socket.h"

namespace phub::transport {
namespace {

// Sends the request, and reads the lane's version and the daemon's offer.
absl::Status Ask(const Descriptor& socket, const std::string& peer, wire::LaneHello hello,
                 const wire::VerbsOffer& ours, const DialDeadline& deadline,
                 wire::VerbsOffer& theirs, std::uint8_t& lane_version) {
  const VersionOffer versions = OfferVersions(hello);
  std::array<std::byte, wire::kLaneHelloBytes + wire::kVerbsOfferBytes> request;
  wire::EncodeVerbsHello(hello, std::span(request).first<wire::kLaneHelloBytes>());
  wire::EncodeVerbsOffer(ours, std::span(request).last<wire::kVerbsOfferBytes>());
  // A daemon may refuse and close before it reads. Its answer is more useful than the error of this
  // call, so read it in any case.
  const bool sent = SendAll(socket.get(), request, deadline);
  std::array<std::byte, wire::kLaneWelcomeBytes> welcome_bytes;
  absl::Status status = ReadAll(socket.get(), welcome_bytes, peer, deadline);
  // A daemon that does not know this hello closes the connection without an answer.
  if (absl::IsUnavailable(status)) {
    return absl::UnimplementedError(
        fmt::format("the daemon at {} does not support lanes over verbs", peer));
  }
  if (!status.ok()) return status;
  const auto version = JudgeWelcome(welcome_bytes, versions, peer, DescribeLane(hello));
  if (!version.ok()) return version.status();
  lane_version = *version;
  if (!sent) return absl::UnavailableError(fmt::format("cannot send the lane hello to {}", peer));
  std::array<std::byte, wire::kVerbsOfferBytes> offer_bytes;
  status = ReadAll(socket.get(), offer_bytes, peer, deadline);
  if (!status.ok()) return status;
  if (wire::DecodeVerbsOffer(offer_bytes, theirs)) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{} sent an invalid description of a lane over verbs", peer));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> DialVerbs(
    const std::string& host, std::uint16_t port, const wire::LaneHello& hello, DurationNs timeout,
    std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain, Random& random,
    const VerbsLimits& limits, VerbsEnd end) {
  const SystemClock clock;
  const DialDeadline deadline{clock, clock.Now() + timeout, timeout};
  const std::string peer = net::HostPort(host, port);
  auto connection =
      VerbsConnection::Create(end, std::move(queue), std::move(domain), {}, limits, random);
  if (!connection.ok()) return absl::UnimplementedError(connection.status().message());
  absl::StatusOr<Descriptor> socket = DialSocket(host, port, deadline);
  if (!socket.ok()) return socket.status();
  wire::VerbsOffer theirs;
  std::uint8_t version = 0;
  absl::Status status =
      Ask(*socket, peer, hello, (*connection)->Offer(), deadline, theirs, version);
  if (status.ok()) status = (*connection)->Connect(theirs);
  if (!status.ok()) return status;
  if (!SendAll(socket->get(), {&wire::kVerbsReady, 1}, deadline)) {
    return absl::UnavailableError(fmt::format(
        "cannot confirm the lane over verbs to {}: the connection of the handshake failed", peer));
  }
  (*connection)->SetSocket(*std::move(socket), peer);
  (*connection)->SetVersion(version);
  return std::unique_ptr<Connection>(*std::move(connection));
}

}  // namespace phub::transport
