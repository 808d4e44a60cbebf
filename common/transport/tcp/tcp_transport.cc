#include "common/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"

namespace phub::transport {
namespace {

// Events collected by one call; the kernel returns the others in the next calls.
constexpr int kEventsPerCollect = 256;

}  // namespace

TcpTransport::TcpTransport(std::uint32_t connections_max, std::size_t linger_bytes,
                           Descriptor epoll)
    : StreamTransport(connections_max, linger_bytes),
      epoll_(std::move(epoll)),
      events_(std::make_unique<epoll_event[]>(kEventsPerCollect)) {
  PHUB_CHECK(epoll_);
}

TcpTransport::~TcpTransport() = default;

void TcpTransport::CollectReadiness() {
  const int count = epoll_wait(epoll_.get(), events_.get(), kEventsPerCollect, 0);
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t events = events_[i].events;
    const ConnectionId id = UnpackId(events_[i].data.u64);
    auto* connection = static_cast<TcpConnection*>(Find(id));
    if (connection == nullptr) continue;
    const bool hangup = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (hangup) connection->NoteHangup();
    MarkReady(id, hangup || (events & EPOLLIN) != 0, hangup || (events & EPOLLOUT) != 0);
  }
}

bool TcpTransport::Watch(StreamConnection& connection, ConnectionId id) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = PackId(id);
  const int socket = static_cast<TcpConnection&>(connection).socket();
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0;
}

void TcpTransport::Unwatch(StreamConnection& connection) {
  const int socket = static_cast<TcpConnection&>(connection).socket();
  const int result = epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
  PHUB_CHECK(result == 0, "socket={} errno={}", socket, errno);
}

}  // namespace phub::transport
