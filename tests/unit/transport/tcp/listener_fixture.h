// A listener that a thread polls, with a gate that records its calls, and clients with plain
// sockets.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_socket.h"
#include "tests/support/listener_thread.h"

namespace phub::transport {

struct Attached {
  wire::LaneHello hello;
  std::unique_ptr<Connection> connection;
  std::string peer_address;
};

// Admits each nonce once if it starts with 'k' (for "known"). 'j', 'b' and 'c' are refused as the
// job's end, a busy place and too many.
class RecordingGate : public LaneGate {
 public:
  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view) override {
    const std::lock_guard lock(mutex_);
    ++asked_;
    switch (static_cast<char>(hello.nonce[0])) {
      case 'j': return wire::LaneRefusal::kJob;
      case 'b': return wire::LaneRefusal::kBusy;
      case 'c': return wire::LaneRefusal::kCapacity;
      case 'k': break;
      default: return wire::LaneRefusal::kNonce;
    }
    for (const wire::Nonce& used : used_) {
      if (used == hello.nonce) return wire::LaneRefusal::kNonce;
    }
    used_.push_back(hello.nonce);
    return wire::LaneRefusal::kNone;
  }
  void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
              std::string peer_address) override {
    const std::lock_guard lock(mutex_);
    attached_.push_back({hello, std::move(connection), std::move(peer_address)});
  }

  std::size_t asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  std::vector<Attached> TakeAttached() {
    const std::lock_guard lock(mutex_);
    return std::exchange(attached_, {});
  }

 private:
  mutable std::mutex mutex_;
  std::vector<wire::Nonce> used_;
  std::vector<Attached> attached_;
  std::size_t asked_ = 0;
};

inline wire::LaneHello HelloWith(const std::string& nonce) {
  wire::LaneHello hello;
  hello.version_min = wire::kLaneVersionMin;
  hello.version_max = wire::kLaneVersion;
  hello.core = CoreIndex{1};
  hello.rank = Rank{3};
  hello.incarnation = Incarnation{0x1122334455667788u};
  for (std::size_t i = 0; i < nonce.size() && i < hello.nonce.size(); ++i) {
    hello.nonce[i] = static_cast<std::byte>(nonce[i]);
  }
  return hello;
}

class PlainClient {
 public:
  // `from`: its own address, in host order.
  explicit PlainClient(std::uint16_t port, std::uint32_t from = INADDR_LOOPBACK)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(from);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }

  bool Send(std::span<const std::byte> bytes) {
    return send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool SendHello(const wire::LaneHello& hello) {
    std::array<std::byte, wire::kLaneHelloBytes> bytes;
    wire::EncodeLaneHello(hello, bytes);
    return Send(bytes);
  }
  // Receives until the end of the stream, or until nothing has arrived for this long.
  std::vector<std::byte> ReceiveAll(int quiet_ms = 5000) {
    std::vector<std::byte> bytes;
    pollfd item{socket_.get(), POLLIN, 0};
    while (poll(&item, 1, quiet_ms) > 0) {
      std::byte buffer[256];
      const ssize_t got = recv(socket_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) {
        ended_ = true;
        break;
      }
      bytes.insert(bytes.end(), buffer, buffer + got);
    }
    return bytes;
  }
  bool ended() const { return ended_; }
  int socket() const { return socket_.get(); }
  bool ReceiveWelcome(wire::LaneWelcome& welcome) {
    std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
    return recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL) ==
               static_cast<ssize_t>(bytes.size()) &&
           wire::DecodeLaneWelcome(bytes, welcome);
  }
  void Close() { socket_.Reset(); }

 private:
  Descriptor socket_;
  bool connected_ = false;
  bool ended_ = false;
};

class ListenerTest : public ::testing::Test {
 protected:
  void Start(const TcpListenerOptions& options = {}) {
    listener.Start(TcpListener::Create(options, gate, clock));
  }
  const LaneListenerCounters& counters() const { return listener->counters(); }

  SystemClock clock;
  RecordingGate gate;
  ListenerThread<TcpListener> listener;
};

}  // namespace phub::transport
