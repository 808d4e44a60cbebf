#include "common/transport/tcp/tcp_dial.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/transport/lane_request.h"
#include "common/transport/tcp/dial_socket.h"
#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::transport {
namespace {

absl::StatusOr<std::unique_ptr<Connection>> Shake(Descriptor socket, const std::string& peer,
                                                  wire::LaneHello hello,
                                                  const DialDeadline& deadline,
                                                  const StreamLimits& limits) {
  const VersionOffer offer = OfferVersions(hello);
  std::array<std::byte, wire::kLaneHelloBytes> hello_bytes;
  wire::EncodeLaneHello(hello, hello_bytes);
  // A daemon that refuses before it reads may have closed already: its answer is worth more than
  // this call's error, so read in any case.
  const bool sent = SendAll(socket.get(), hello_bytes, deadline);
  std::array<std::byte, wire::kLaneWelcomeBytes> welcome_bytes;
  const absl::Status read = ReadAll(socket.get(), welcome_bytes, peer, deadline);
  if (!read.ok()) return read;
  wire::LaneWelcome welcome;
  if (!wire::DecodeLaneWelcome(welcome_bytes, welcome)) {
    return absl::InternalError(
        fmt::format("{} does not answer as a phub daemon's data port does", peer));
  }
  const absl::Status welcomed = CheckWelcome(
      welcome, offer, peer,
      fmt::format("the lane of rank {} to core {}", hello.rank.value, hello.core.value));
  if (!welcomed.ok()) return welcomed;
  if (!sent) return absl::UnavailableError(fmt::format("{} broke the connection", peer));
  return std::make_unique<TcpConnection>(std::move(socket), welcome.version, limits);
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
  return Shake(*std::move(socket), HostPort(host, port), hello, deadline, limits);
}

}  // namespace phub::transport
