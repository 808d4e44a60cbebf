#include "common/transport/tcp/tcp_dial.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "common/base/errno_text.h"
#include "common/transport/lane_request.h"
#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::transport {
namespace {

struct Deadline {
  const Clock& clock;
  TimeNs at;
  DurationNs timeout;
};

absl::Status TimedOut(const std::string& peer, const char* what, const Deadline& deadline) {
  return absl::DeadlineExceededError(
      fmt::format("{} {} within {} ms; is the daemon overloaded, or "
                  "something between dropping packets?",
                  peer, what, deadline.timeout / kMillisecond));
}

absl::StatusOr<Descriptor> ConnectTo(const SocketAddress& address, const std::string& peer,
                                     const Deadline& deadline) {
  Descriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    return absl::UnavailableError(
        fmt::format("cannot make a socket for {}: {}", peer, ErrnoText(errno)));
  }
  int error = connect(socket.get(), address.get(), address.bytes) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    if (!WaitSocket(socket.get(), POLLOUT, deadline.at, deadline.clock)) {
      return TimedOut(peer, "could not be reached", deadline);
    }
    socklen_t bytes = sizeof error;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  }
  if (error != 0) {
    return absl::UnavailableError(
        fmt::format("cannot connect to {} ({}): {}; is phubd running there, with its data port "
                    "open?",
                    peer, AddressText(address), ErrnoText(error)));
  }
  return socket;
}

// Whole or not at all; a hello fits any socket buffer, so this waits in theory only.
bool SendAll(int socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t put = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    } else if (errno == EAGAIN) {
      if (!WaitSocket(socket, POLLOUT, deadline.at, deadline.clock)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

absl::Status ReadAll(int socket, std::span<std::byte> bytes, const std::string& peer,
                     const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return absl::UnavailableError(
          fmt::format("{} closed the connection before it answered; is that its data port?", peer));
    } else if (errno == EAGAIN) {
      if (!WaitSocket(socket, POLLIN, deadline.at, deadline.clock)) {
        return TimedOut(peer, "did not answer the lane hello", deadline);
      }
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          fmt::format("{} broke the connection: {}", peer, ErrnoText(errno)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Connection>> Shake(Descriptor socket, const std::string& peer,
                                                  wire::LaneHello hello, const Deadline& deadline,
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
  const std::string peer = HostPort(host, port);
  absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, port, /*passive=*/false);
  if (!addresses.ok()) return addresses.status();
  const Deadline deadline{clock, clock.Now() + timeout, timeout};
  absl::Status last = absl::OkStatus();
  for (const SocketAddress& address : *addresses) {
    absl::StatusOr<Descriptor> socket = ConnectTo(address, peer, deadline);
    if (socket.ok()) return Shake(*std::move(socket), peer, hello, deadline, limits);
    last = socket.status();
  }
  return last;
}

}  // namespace phub::transport
