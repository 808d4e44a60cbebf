#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/transport/tls/tls_connection.h"
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

class TcpRawPeer : public RawPeer {
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

 protected:
  Descriptor socket_;
};

class TcpHarness : public Harness {
 public:
  explicit TcpHarness(const HarnessLimits& limits)
      : left_(limits.connections_max),
        right_(limits.connections_max),
        limits_{.send_queue = limits.send_queue, .received_lent = limits.received_lent} {}

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

  transport::TcpTransport left_;
  transport::TcpTransport right_;

 protected:
  const transport::StreamLimits limits_;
};

// Both ends after a handshake with the same key. Data keys change often.
constexpr std::uint64_t kBytesPerKey = 300'000;
using Sessions =
    std::pair<std::unique_ptr<transport::TlsSession>, std::unique_ptr<transport::TlsSession>>;

Sessions Shake(int client_socket, int daemon_socket) {
  using transport::TlsSession;
  wire::LaneHello hello{.version_min = wire::kLaneVersionMin, .version_max = wire::kLaneVersion};
  hello.nonce[3] = std::byte{7};
  const transport::LaneKeyName name = transport::NameOfLane(hello);
  const transport::LaneKey key = transport::KeyOfLane(name, hello.nonce);
  auto client = TlsSession::MakeClient(client_socket, name, key);
  auto daemon = TlsSession::MakeDaemon(
      daemon_socket, {}, [&](const transport::LaneKeyName& asked, transport::LaneKey& found) {
        found = key;
        return asked == name;
      });
  auto client_step = TlsSession::Step::kWaitsToRead;
  auto daemon_step = TlsSession::Step::kWaitsToRead;
  while (client_step != TlsSession::Step::kDone || daemon_step != TlsSession::Step::kDone) {
    client_step = client->Handshake();
    daemon_step = daemon->Handshake();
    PHUB_CHECK(client_step != TlsSession::Step::kFailed, "{}", client->failure());
    PHUB_CHECK(daemon_step != TlsSession::Step::kFailed, "{}", daemon->failure());
  }
  client->BecomeLane(kBytesPerKey);
  daemon->BecomeLane(kBytesPerKey);
  return {std::move(client), std::move(daemon)};
}

class TlsRawPeer final : public TcpRawPeer {
 public:
  TlsRawPeer(Descriptor socket, std::unique_ptr<transport::TlsSession> session)
      : TcpRawPeer(std::move(socket)), session_(std::move(session)) {}

  void Write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const transport::IoResult io = session_->Writev({&part, 1});
      if (io.status == transport::IoStatus::kReset) return;
      bytes = bytes.subspan(io.bytes);
      pollfd item{socket_.get(), POLLOUT, 0};
      if (!bytes.empty()) poll(&item, 1, 100);
    }
  }
  void Close() override {
    session_->Close();
    TcpRawPeer::Close();
  }

 private:
  const std::unique_ptr<transport::TlsSession> session_;
};

class TlsHarness final : public TcpHarness {
 public:
  explicit TlsHarness(const HarnessLimits& limits) : TcpHarness(limits) {}

  ConnectionPair Connect() override {
    auto [a, b] = SocketPair();
    auto [client, daemon] = Shake(a.get(), b.get());
    return {Secured(std::move(a), std::move(client)), Secured(std::move(b), std::move(daemon))};
  }

  std::unique_ptr<RawPeer> ConnectRaw(std::unique_ptr<transport::Connection>& connection) override {
    auto [a, b] = SocketPair();
    auto [client, daemon] = Shake(b.get(), a.get());
    connection = Secured(std::move(a), std::move(daemon));
    return std::make_unique<TlsRawPeer>(std::move(b), std::move(client));
  }

 private:
  std::unique_ptr<transport::Connection> Secured(
      Descriptor socket, std::unique_ptr<transport::TlsSession> session) const {
    return std::make_unique<transport::TlsConnection>(std::move(socket), std::move(session),
                                                      wire::kLaneVersion, limits_);
  }
};

}  // namespace

std::unique_ptr<Harness> MakeTlsHarness(const HarnessLimits& limits) {
  return std::make_unique<TlsHarness>(limits);
}

std::unique_ptr<Harness> MakeTcpHarness(const HarnessLimits& limits) {
  return std::make_unique<TcpHarness>(limits);
}

}  // namespace phub::conformance
