#include "common/transport/verbs/verbs_dial.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/base/status_text.h"
#include "common/transport/lane_request.h"
#include "common/transport/tcp/dial_socket.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::transport {
namespace {

// Sends the request and reads the daemon's offer.
absl::Status Ask(const Descriptor& socket, const std::string& peer, wire::LaneHello hello,
                 const wire::VerbsOffer& ours, const DialDeadline& deadline,
                 wire::VerbsOffer& theirs) {
  const VersionOffer versions = OfferVersions(hello);
  std::array<std::byte, wire::kLaneHelloBytes + wire::kVerbsOfferBytes> request;
  wire::EncodeVerbsHello(hello, std::span(request).first<wire::kLaneHelloBytes>());
  wire::EncodeVerbsOffer(ours, std::span(request).last<wire::kVerbsOfferBytes>());
  // A daemon that refuses before it reads may have closed already: its answer is worth more than
  // this call's error, so read in any case.
  const bool sent = SendAll(socket.get(), request, deadline);
  std::array<std::byte, wire::kLaneWelcomeBytes> welcome_bytes;
  absl::Status status = ReadAll(socket.get(), welcome_bytes, peer, deadline);
  // Who does not know the hello closes without a word.
  if (absl::IsUnavailable(status)) {
    return absl::UnimplementedError(
        fmt::format("the data port of {} makes no lanes over verbs", peer));
  }
  if (!status.ok()) return status;
  const auto version = JudgeWelcome(welcome_bytes, versions, peer, DescribeLane(hello));
  if (!version.ok()) return version.status();
  if (!sent) return absl::UnavailableError(fmt::format("{} broke the connection", peer));
  std::array<std::byte, wire::kVerbsOfferBytes> offer_bytes;
  status = ReadAll(socket.get(), offer_bytes, peer, deadline);
  if (!status.ok()) return status;
  if (wire::DecodeVerbsOffer(offer_bytes, theirs)) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} offers a lane over verbs that makes no sense", peer));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> DialVerbs(
    const std::string& host, std::uint16_t port, const wire::LaneHello& hello, DurationNs timeout,
    std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain, Random& random,
    const VerbsLimits& limits, VerbsEnd end) {
  const SystemClock clock;
  const DialDeadline deadline{clock, clock.Now() + timeout, timeout};
  const std::string peer = HostPort(host, port);
  auto connection =
      VerbsConnection::Create(end, std::move(queue), std::move(domain), {}, limits, random);
  if (!connection.ok()) return absl::UnimplementedError(connection.status().message());
  absl::StatusOr<Descriptor> socket = DialSocket(host, port, deadline);
  if (!socket.ok()) return socket.status();
  wire::VerbsOffer theirs;
  absl::Status status = Ask(*socket, peer, hello, (*connection)->Offer(), deadline, theirs);
  if (status.ok()) status = (*connection)->Connect(theirs);
  if (!status.ok()) return status;
  if (!SendAll(socket->get(), {&wire::kVerbsReady, 1}, deadline)) {
    return absl::UnavailableError(fmt::format("{} broke the connection", peer));
  }
  (*connection)->SetSocket(*std::move(socket), peer);
  return std::unique_ptr<Connection>(*std::move(connection));
}

}  // namespace phub::transport
