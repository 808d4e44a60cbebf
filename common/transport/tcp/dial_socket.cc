#include "common/transport/tcp/dial_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "common/base/errno_text.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::transport {

absl::Status TimedOut(const std::string& peer, const char* what, const DialDeadline& deadline) {
  return absl::DeadlineExceededError(
      fmt::format("{} {} within {} ms; the daemon is probably overloaded, or a "
                  "firewall drops packets",
                  peer, what, deadline.timeout / kMillisecond));
}

namespace {

absl::StatusOr<Descriptor> ConnectTo(const SocketAddress& address, const std::string& peer,
                                     const DialDeadline& deadline) {
  Descriptor socket = LaneSocket(address.storage.ss_family);
  if (!socket) {
    return absl::UnavailableError(
        fmt::format("cannot create a socket for {}: {}", peer, ErrnoText(errno)));
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
        fmt::format("cannot connect to {} ({}): {}; is phubd running there, and is its data port "
                    "reachable?",
                    peer, AddressText(address), ErrnoText(error)));
  }
  return socket;
}

}  // namespace

absl::StatusOr<Descriptor> DialSocket(const std::string& host, std::uint16_t port,
                                      const DialDeadline& deadline) {
  absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, port, /*passive=*/false);
  if (!addresses.ok()) return addresses.status();
  absl::Status last = absl::OkStatus();
  for (const SocketAddress& address : *addresses) {
    absl::StatusOr<Descriptor> socket = ConnectTo(address, HostPort(host, port), deadline);
    if (socket.ok()) return socket;
    last = socket.status();
  }
  return last;
}

bool SendAll(int socket, std::span<const std::byte> bytes, const DialDeadline& deadline) {
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
                     const DialDeadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return absl::UnavailableError(fmt::format(
          "{} closed the connection without an answer; is that phubd's data port?", peer));
    } else if (errno == EAGAIN) {
      if (!WaitSocket(socket, POLLIN, deadline.at, deadline.clock)) {
        return TimedOut(peer, "did not answer the lane hello", deadline);
      }
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          fmt::format("the connection to {} failed: {}", peer, ErrnoText(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace phub::transport
