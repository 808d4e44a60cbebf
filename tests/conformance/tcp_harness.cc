#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_transport.h"
#include "tests/conformance/harness.h"

namespace phub::conformance {
namespace {

// Two ends of a TCP connection over loopback.
std::pair<Descriptor, Descriptor> SocketPair() {
  Descriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  PHUB_CHECK(bind(listening.get(), generic, bytes) == 0, "errno={}", errno);
  PHUB_CHECK(listen(listening.get(), 1) == 0, "errno={}", errno);
  PHUB_CHECK(getsockname(listening.get(), generic, &bytes) == 0, "errno={}", errno);
  Descriptor a(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  PHUB_CHECK(connect(a.get(), generic, bytes) == 0, "errno={}", errno);
  Descriptor b(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  PHUB_CHECK(b, "errno={}", errno);
  return {std::move(a), std::move(b)};
}

class TcpRawPeer final : public RawPeer {
 public:
  explicit TcpRawPeer(Descriptor socket) : socket_(std::move(socket)) {}

  void Write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t put = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return;
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
  }
  void Close() override { shutdown(socket_.get(), SHUT_WR); }
  void Reset() override {
    const linger abort{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    socket_.Reset();
  }

 private:
  Descriptor socket_;
};

class TcpHarness final : public Harness {
 public:
  explicit TcpHarness(const HarnessLimits& limits)
      : limits_{.send_queue = limits.send_queue, .received_lent = limits.received_lent},
        left_(limits.connections_max),
        right_(limits.connections_max) {}

  transport::Transport& left() override { return left_; }
  transport::Transport& right() override { return right_; }

  ConnectionPair Connect() override {
    auto [a, b] = SocketPair();
    return {Wrap(std::move(a)), Wrap(std::move(b))};
  }

  std::unique_ptr<RawPeer> ConnectRaw(std::unique_ptr<transport::Connection>& connection) override {
    auto [a, b] = SocketPair();
    connection = Wrap(std::move(a));
    return std::make_unique<TcpRawPeer>(std::move(b));
  }

  void Pump() override {
    if (!left_.Arm() || !right_.Arm()) return;
    pollfd items[2] = {{left_.descriptor(), POLLIN, 0}, {right_.descriptor(), POLLIN, 0}};
    poll(items, 2, 1);
  }

 private:
  std::unique_ptr<transport::Connection> Wrap(Descriptor socket) const {
    return std::make_unique<transport::TcpConnection>(std::move(socket), wire::kLaneVersion,
                                                      limits_);
  }

  const transport::StreamLimits limits_;
  transport::TcpTransport left_;
  transport::TcpTransport right_;
};

}  // namespace

std::unique_ptr<Harness> MakeTcpHarness(const HarnessLimits& limits) {
  return std::make_unique<TcpHarness>(limits);
}

}  // namespace phub::conformance
