// A listener with TLS, whose gate knows the nonces that it issued, and peers that are not workers.
#pragma once

#include <openssl/ssl.h>

#include <map>
#include <utility>

#include "common/transport/tls/tls_connection.h"
#include "common/transport/tls/tls_dial.h"
#include "tests/support/eventually.h"
#include "tests/unit/transport/tcp/listener_fixture.h"

namespace phub::transport {

// Issues one nonce for each rank.
class GivingGate final : public RecordingGate {
 public:
  void Give(const wire::LaneHello& hello) {
    const std::lock_guard lock(mutex_);
    given_[hello.rank.value] = hello.nonce;
  }
  void Forget(const wire::LaneHello& hello) {
    const std::lock_guard lock(mutex_);
    given_.erase(hello.rank.value);
  }
  bool FindNonce(const wire::LaneHello& hello, wire::Nonce& nonce) override {
    const std::lock_guard lock(mutex_);
    ++looked_up_;
    const auto found = given_.find(hello.rank.value);
    if (found != given_.end()) nonce = found->second;
    return found != given_.end();
  }
  std::size_t looked_up() const {
    const std::lock_guard lock(mutex_);
    return looked_up_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uint32_t, wire::Nonce> given_;
  std::size_t looked_up_ = 0;
};

class TlsListenerTest : public ::testing::Test {
 protected:
  void Start(TcpListenerOptions options = {}) {
    options.tls = true;
    listener.Start(TcpListener::Create(options, gate, clock));
  }
  absl::StatusOr<std::unique_ptr<Connection>> Dial(const wire::LaneHello& hello) const {
    return DialTls("127.0.0.1", listener->port(), hello, 5 * kSecond);
  }
  // A lane with its two ends. Asserts that it could be made.
  std::pair<std::unique_ptr<TcpConnection>, std::unique_ptr<TcpConnection>> MakeLane(
      const wire::LaneHello& hello) {
    gate.Give(hello);
    auto dialled = Dial(hello);
    EXPECT_TRUE(dialled.ok()) << dialled.status();
    if (!dialled.ok()) return {};
    std::vector<Attached> attached;
    EXPECT_TRUE(Eventually([&] {
      attached = gate.TakeAttached();
      return !attached.empty();
    }));
    return {std::unique_ptr<TcpConnection>(static_cast<TcpConnection*>(dialled->release())),
            std::unique_ptr<TcpConnection>(
                static_cast<TcpConnection*>(attached.at(0).connection.release()))};
  }
  // The first handshake message of a worker with this hello.
  static std::vector<std::byte> ClientHelloOf(const wire::LaneHello& hello) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    const Descriptor ours(ends[0]);
    const Descriptor theirs(ends[1]);
    const LaneKeyName name = NameOfLane(hello);
    auto session = TlsSession::MakeClient(ours.get(), name, KeyOfLane(name, hello.nonce));
    EXPECT_EQ(session->Handshake(), TlsSession::Step::kWaitsToRead);
    std::vector<std::byte> bytes(4096);
    const ssize_t got = recv(theirs.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  const LaneListenerCounters& counters() const { return listener->counters(); }

  SystemClock clock;
  GivingGate gate;
  ListenerThread<TcpListener> listener;
};

// An ordinary TLS client, such as a browser or a scanner. Returns false if the handshake failed.
inline bool ShakeAsAnybody(std::uint16_t port, int version_max) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return false;
  }
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_max_proto_version(context, version_max);
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, socket.get());
  const bool done = SSL_connect(ssl) == 1;
  SSL_free(ssl);
  SSL_CTX_free(context);
  return done;
}

}  // namespace phub::transport
