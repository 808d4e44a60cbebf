// Lanes over TCP, with edge-triggered epoll: a connection costs one epoll_ctl when it is adopted
// and none per message. descriptor() is the epoll descriptor. It is readable exactly while there
// are events that Poll or Arm have not collected.
//
// Adopt makes one system call and allocates nothing. Belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/descriptor.h"
#include "common/base/shortage.h"
#include "common/transport/stream/stream_transport.h"
#include "common/transport/tcp/tcp_connection.h"

struct epoll_event;

namespace phub::transport {

class TcpTransport final : public StreamTransport {
 public:
  // `epoll`: from MakeEpoll(); the default is for tests, because it may fail.
  explicit TcpTransport(std::uint32_t connections_max = kConnectionsMaxDefault,
                        std::size_t linger_bytes = 0, Descriptor epoll = *MakeEpoll());
  ~TcpTransport() override;

  int descriptor() const override { return epoll_.get(); }

 protected:
  void CollectReadiness() override;
  bool Watch(StreamConnection& connection, ConnectionId id) override;
  void Unwatch(StreamConnection& connection) override;

 private:
  Descriptor epoll_;
  const std::unique_ptr<epoll_event[]> events_;
};

}  // namespace phub::transport
