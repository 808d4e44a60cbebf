#include "common/transport/tls/tls_dial.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "common/transport/lane_request.h"
#include "common/transport/tcp/dial_socket.h"
#include "common/transport/tls/tls_connection.h"

namespace phub::transport {
namespace {

absl::Status Waited(int socket, const std::string& peer, const DialDeadline& deadline) {
  if (net::WaitSocket(socket, POLLIN, deadline.at, deadline.clock)) return absl::OkStatus();
  return TimedOut(peer, "did not answer the lane's handshake", deadline);
}

// A daemon that has no place for another peer refuses before it reads, so this refusal is not
// encrypted. It is the only unencrypted answer that is accepted: an attacker who can forge it could
// also cut the connection.
absl::Status AnsweredInTheClear(int socket, const std::string& peer, VersionOffer offer,
                                const std::string& what) {
  std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
  wire::LaneWelcome welcome;
  const ssize_t got = recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  const bool refused = got == static_cast<ssize_t>(bytes.size()) &&
                       wire::DecodeLaneWelcome(bytes, welcome) &&
                       welcome.refusal == wire::LaneRefusal::kCapacity;
  return refused ? CheckWelcome(welcome, offer, peer, what) : absl::OkStatus();
}

absl::Status Secure(TlsSession& session, int socket, const std::string& peer, VersionOffer offer,
                    const std::string& what, const DialDeadline& deadline) {
  for (bool heard = false;; heard = true) {
    const TlsSession::Step step = session.Handshake();
    if (!heard) {
      absl::Status status = absl::OkStatus();
      if (step == TlsSession::Step::kWaitsToRead) status = Waited(socket, peer, deadline);
      if (status.ok()) status = AnsweredInTheClear(socket, peer, offer, what);
      if (!status.ok()) return status;
    }
    switch (step) {
      case TlsSession::Step::kDone: return absl::OkStatus();
      case TlsSession::Step::kFailed:
        return absl::PermissionDeniedError(fmt::format(
            "the TLS handshake with {} failed ({}): the lane's nonce was probably used before or "
            "has expired, or the peer is not the daemon; join the job again",
            peer, session.failure()));
      case TlsSession::Step::kWaitsToRead: break;
    }
    if (absl::Status status = Waited(socket, peer, deadline); !status.ok()) return status;
  }
}

absl::Status ReadWelcome(TlsSession& session, int socket, const std::string& peer,
                         const DialDeadline& deadline,
                         std::span<std::byte, wire::kLaneWelcomeBytes> bytes) {
  std::span<std::byte> rest = bytes;
  for (;;) {
    const iovec part{rest.data(), rest.size()};
    const IoResult io = session.Readv({&part, 1}, /*hangup=*/false);
    rest = rest.subspan(io.bytes);
    if (rest.empty()) return absl::OkStatus();
    if (io.status == IoStatus::kClosed || io.status == IoStatus::kReset) {
      return absl::UnavailableError(
          fmt::format("{} closed the connection without an answer to the lane hello", peer));
    }
    if (io.status != IoStatus::kDrained) continue;
    if (absl::Status status = Waited(socket, peer, deadline); !status.ok()) return status;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> DialTls(const std::string& host, std::uint16_t port,
                                                    const wire::LaneHello& asked,
                                                    DurationNs timeout,
                                                    const StreamLimits& limits) {
  const SystemClock clock;
  const DialDeadline deadline{clock, clock.Now() + timeout, timeout};
  const std::string peer = net::HostPort(host, port);
  absl::StatusOr<Descriptor> socket = DialSocket(host, port, deadline);
  if (!socket.ok()) return socket.status();
  wire::LaneHello hello = asked;
  const VersionOffer offer = OfferVersions(hello);
  const LaneKeyName name = NameOfLane(hello);
  const std::string what = DescribeLane(hello);
  std::unique_ptr<TlsSession> session =
      TlsSession::MakeClient(socket->get(), name, KeyOfLane(name, hello.nonce));
  absl::Status status = Secure(*session, socket->get(), peer, offer, what, deadline);
  if (!status.ok()) return status;
  std::array<std::byte, wire::kLaneHelloBytes> hello_bytes;
  wire::EncodeLaneHello(hello, hello_bytes);
  const iovec part{hello_bytes.data(), hello_bytes.size()};
  if (session->Writev({&part, 1}).bytes != hello_bytes.size()) {
    return absl::UnavailableError(fmt::format("cannot send the lane hello to {}", peer));
  }
  std::array<std::byte, wire::kLaneWelcomeBytes> welcome_bytes;
  status = ReadWelcome(*session, socket->get(), peer, deadline, welcome_bytes);
  if (!status.ok()) return status;
  const absl::StatusOr<std::uint8_t> version = JudgeWelcome(welcome_bytes, offer, peer, what);
  if (!version.ok()) return version.status();
  session->BecomeLane();
  return std::make_unique<TlsConnection>(*std::move(socket), std::move(session), *version, limits);
}

}  // namespace phub::transport
