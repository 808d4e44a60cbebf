#include "common/transport/tcp/tcp_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

namespace phub::transport {
namespace {

SocketAddress AddressOf(const std::string& host, std::uint16_t port) {
  const auto addresses = Resolve(host, port, /*passive=*/false);
  EXPECT_TRUE(addresses.ok()) << addresses.status();
  return addresses.ok() ? addresses->front() : SocketAddress();
}

TEST(TcpSocket, AnAddressThatIsNamedTwiceIsOne) {
  const std::vector<SocketAddress> addresses = {
      AddressOf("127.0.0.2", 7700), AddressOf("127.0.0.1", 7700), AddressOf("127.0.0.2", 7700),
      AddressOf("127.0.0.1", 7701), AddressOf("127.0.0.1", 7700)};
  const std::vector<SocketAddress> distinct = Distinct(addresses);
  ASSERT_EQ(distinct.size(), 3u);
  EXPECT_EQ(AddressText(distinct[0]), "127.0.0.2");
  EXPECT_EQ(AddressText(distinct[1]), "127.0.0.1");
  EXPECT_EQ(PortOf(distinct[1]), 7700);
  EXPECT_EQ(PortOf(distinct[2]), 7701);
  EXPECT_TRUE(Distinct({}).empty());
}

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

}  // namespace
}  // namespace phub::transport
