#include "common/transport/tcp/tcp_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

#include "common/transport/tcp/tcp_connection.h"

namespace phub::transport {
namespace {

std::string CongestionControl(int socket) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

TEST(TcpSocket, LanesHaveTheHostsCongestionControlUnlessThatIsBbr) {
  const Descriptor plain(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Descriptor lane = LaneSocket(AF_INET);
  ASSERT_TRUE(plain && lane);
  const std::string host = CongestionControl(plain.get());
  EXPECT_EQ(CongestionControl(lane.get()), host.starts_with("bbr") ? "cubic" : host);
}

TEST(TcpConnection, LimitsWhatTheKernelHoldsUnsent) {
  Descriptor socket = LaneSocket(AF_INET);
  ASSERT_TRUE(socket);
  TcpConnection connection(std::move(socket), 1, {});
  connection.LimitUnsent(128 * 1024);
  int limit = 0;
  socklen_t bytes = sizeof limit;
  ASSERT_EQ(getsockopt(connection.socket(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &bytes), 0);
  EXPECT_EQ(limit, 128 * 1024);
}

}  // namespace
}  // namespace phub::transport
