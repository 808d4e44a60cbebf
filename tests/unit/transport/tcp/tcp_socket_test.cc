#include "common/transport/tcp/tcp_socket.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace phub::transport
