#include "common/transport/tcp/tcp_dial.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/transport/lane_request.h"
#include "common/transport/tcp/dial_socket.h"
#include "common/transport/tcp/tcp_connection.h"

namespace phub::transport {
namespace {

absl::StatusOr<std::unique_ptr<Connection>> Shake(Descriptor socket, const std::string& peer,
                                                  wire::LaneHello hello,
                                                  const DialDeadline& deadline,
                                                  const StreamLimits& limits) {
  const VersionOffer offer = OfferVersions(hello);
  std::array<std::byte, wire::kLaneHelloBytes> hello_bytes;
  wire::EncodeLaneHello(hello, hello_bytes);
  // A daemon may refuse and close before it reads. Its answer is more useful than the error of this
  // call, so read it in any case.
  const bool sent = SendAll(socket.get(), hello_bytes, deadline);
  std::array<std::byte, wire::kLaneWelcomeBytes> welcome_bytes;
  const absl::Status read = ReadAll(socket.get(), welcome_bytes, peer, deadline);
  if (!read.ok()) return read;
  const absl::StatusOr<std::uint8_t> version =
      JudgeWelcome(welcome_bytes, offer, peer, DescribeLane(hello));
  if (!version.ok()) return version.status();
  if (!sent) return absl::UnavailableError(fmt::format("cannot send the lane hello to {}", peer));
  return std::make_unique<TcpConnection>(std::move(socket), *version, limits);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> DialTcp(const std::string& host, std::uint16_t port,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    const StreamLimits& limits) {
  const SystemClock clock;
  const DialDeadline deadline{clock, clock.Now() + timeout, timeout};
  absl::StatusOr<Descriptor> socket = DialSocket(host, port, deadline);
  if (!socket.ok()) return socket.status();
  return Shake(*std::move(socket), net::HostPort(host, port), hello, deadline, limits);
}

}  // namespace phub::transport
