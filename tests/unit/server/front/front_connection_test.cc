#include "server/front/front_connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include "server/front/call_checks.h"
#include "server/front/front_limits.h"
#include "tests/unit/server/front/h2_peer.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kWideWindow = 64 << 20;
constexpr H2Session::Limits kWide = {.header_list_bytes_max = 64 << 10,
                                     .memory_bytes_max = 64 << 20,
                                     .streams_max = 128,
                                     .stream_window = kWideWindow,
                                     .connection_window = kWideWindow};

// The far end of one of the connection's sockets.
class FarEnd {
 public:
  // near: the connection's end.
  FarEnd(H2Side side, Descriptor& near) : peer(side, kWide) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    near = Descriptor(ends[0]);
    socket_ = Descriptor(ends[1]);
  }
  // Reads and writes all that is possible. True: it has written something, which epoll reports to
  // the connection.
  bool Move() {
    std::array<char, 16 << 10> bytes{};
    for (ssize_t size = 0; (size = read(socket_.get(), bytes.data(), bytes.size())) > 0;)
      peer.session.Receive({bytes.data(), static_cast<std::size_t>(size)});
    bool wrote = false;
    for (;;) {
      if (unsent_.empty()) unsent_ = std::string(peer.session.Next());
      if (unsent_.empty()) return wrote;
      const ssize_t size = write(socket_.get(), unsent_.data(), unsent_.size());
      if (size <= 0) return wrote;
      wrote = true;
      unsent_.erase(0, static_cast<std::size_t>(size));
    }
  }
  H2Peer peer;

 private:
  Descriptor socket_;
  std::string unsent_;
};

class FrontConnectionTest : public ::testing::Test, public FrontConnection::Owner {
 protected:
  FrontConnectionTest() : connection(*this, 1, std::move(client_socket), "127.0.0.1:1", 0) {
    connection.Start(nullptr, 0);
  }
  void Judge(const FrontCall&) override { judged = true; }
  bool serving() const override { return true; }

  // Gives the connection a turn only if epoll would: after the other end of a socket has written.
  // The sockets' buffers never fill up, so they never become writable again.
  void Settle() {
    for (bool more = true; more;) {
      const bool from_client = client.Move();
      const bool from_grpc = connection.opened() && grpc.Move();
      connection.NoteClient(from_client, false);
      if (connection.opened()) connection.NoteUpstream(from_grpc, false);
      more = from_client || from_grpc;
      while (more && connection.Turn(0)) continue;
      more |= client.Move();
    }
  }

  Descriptor client_socket, grpc_socket;
  FarEnd client{H2Side::kClient, client_socket};
  FarEnd grpc{H2Side::kServer, grpc_socket};
  FrontConnection connection;
  bool judged = false;
};

// A client with wide windows sends nothing while it reads, so the connection gets no turn on its
// account. What opens the upstream's window must leave in the turn that passes the data on.
TEST_F(FrontConnectionTest, ALongAnswerNeedsNothingFromItsReader) {
  client.peer.session.Request({{":method", "POST"},
                               {":scheme", "http"},
                               {":path", "/a.B/C"},
                               {":authority", "x"},
                               {"te", "trailers"},
                               {"content-type", "application/grpc"}},
                              /*end=*/true);
  Settle();
  ASSERT_TRUE(judged);
  connection.Open(std::move(grpc_socket));
  while (connection.Turn(0)) continue;
  Settle();
  ASSERT_FALSE(grpc.peer.first.empty());
  // The second part begins with the rest of the window, which is passed on in one turn. Only then
  // is more than half of the window consumed, and nothing else gives the connection a turn.
  const std::string beginning(kUpstreamWindow * 3 / 8, 'x');
  const std::string rest(1 << 20, 'y');
  grpc.peer.to_send.Append(beginning);
  grpc.peer.session.Respond(grpc.peer.last_stream, AnswerHeaders(), false);
  Settle();
  EXPECT_EQ(client.peer.received.size(), beginning.size());
  grpc.peer.to_send.Append(rest);
  grpc.peer.ended = true;
  grpc.peer.session.Resume(grpc.peer.last_stream);
  Settle();
  EXPECT_EQ(client.peer.received.size(), beginning.size() + rest.size());
  EXPECT_EQ(client.peer.ends, 1);
}

}  // namespace
}  // namespace phub::server
