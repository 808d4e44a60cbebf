#include "common/transport/tcp/dial_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/base/errno_text.h"
#include "common/base/status_text.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::transport {

absl::Status TimedOut(const std::string& peer, const char* what, const DialDeadline& deadline) {
  return absl::DeadlineExceededError(
      fmt::format("{} {} within {} ms; the daemon is probably overloaded, or a "
                  "firewall drops packets",
                  peer, what, deadline.timeout / kMillisecond));
}

absl::StatusOr<Descriptor> DialSocket(const std::string& host, std::uint16_t port,
                                      const DialDeadline& deadline) {
  absl::StatusOr<net::Dialled> dialled = net::Dial(host, port, deadline, LaneSocket);
  if (dialled.ok()) return std::move(dialled->socket);
  const absl::Status& status = dialled.status();
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  return absl::Status(status.code(),
                      fmt::format("{}; is phubd running there, and is its data port reachable?",
                                  MessageOf(status)));
}

bool SendAll(int socket, std::span<const std::byte> bytes, const DialDeadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t put = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    } else if (errno == EAGAIN) {
      if (!net::WaitSocket(socket, POLLOUT, deadline.at, deadline.clock)) return false;
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
      if (!net::WaitSocket(socket, POLLIN, deadline.at, deadline.clock)) {
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
