#include "common/transport/tcp/tcp_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "common/base/check.h"

namespace phub::transport {
namespace {

std::size_t Total(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

msghdr HeaderOf(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // the calls below do not change it
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

// Does not set buffer sizes, because that would turn off the kernel's automatic tuning (tcp_rmem,
// tcp_wmem). Does not set keepalive or a user timeout, because the control plane detects silent
// peers and closes their lanes.
TcpConnection::TcpConnection(Descriptor socket, std::uint8_t version, const StreamLimits& limits)
    : StreamConnection(limits), socket_(std::move(socket)) {
  SetVersion(version);
  PHUB_CHECK(socket_, "a connection needs a socket");
  const int flags = fcntl(socket_.get(), F_GETFL);
  PHUB_CHECK(flags >= 0 && fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) == 0, "errno={}",
             errno);
  const int on = 1;
  // Fails on a socket that is already reset; the next read reports that.
  [[maybe_unused]] const int result =
      setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

IoResult TcpConnection::Readv(std::span<const iovec> parts) {
  PHUB_DCHECK(!parts.empty() && parts.size() <= IOV_MAX, "parts={}", parts.size());
  msghdr message = HeaderOf(parts);
  ssize_t got = 0;
  do {
    got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return {0, IoStatus::kClosed};
  if (got < 0) {
    const bool would_block = errno == EAGAIN || errno == EWOULDBLOCK;
    return {0, would_block ? IoStatus::kDrained : IoStatus::kReset};
  }
  const auto bytes = static_cast<std::size_t>(got);
  // Readiness is edge-triggered. Bytes that arrive after a short read cause a new edge, but an end
  // of the stream that was reported before does not.
  return {bytes, bytes < Total(parts) && !hangup_ ? IoStatus::kDrained : IoStatus::kMore};
}

IoResult TcpConnection::Writev(std::span<const iovec> parts) {
  PHUB_DCHECK(!parts.empty() && parts.size() <= IOV_MAX, "parts={}", parts.size());
  const msghdr message = HeaderOf(parts);
  ssize_t put = 0;
  do {
    put = sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (put < 0 && errno == EINTR);
  if (put < 0) {
    const bool would_block = errno == EAGAIN || errno == EWOULDBLOCK;
    return {0, would_block ? IoStatus::kDrained : IoStatus::kReset};
  }
  const auto bytes = static_cast<std::size_t>(put);
  return {bytes, bytes < Total(parts) ? IoStatus::kDrained : IoStatus::kMore};
}

void TcpConnection::LimitUnsent(std::uint32_t bytes) {
  const int limit = static_cast<int>(bytes);
  // Fails on a socket that is already reset; the next read reports that.
  [[maybe_unused]] const int result =
      setsockopt(socket_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof limit);
}

void TcpConnection::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace phub::transport
