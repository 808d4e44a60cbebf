#include "common/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace phub::net {
namespace {

using ::testing::HasSubstr;

SocketAddress AddressOf(const std::string& host, std::uint16_t port) {
  const auto addresses = Resolve(host, port, /*passive=*/false);
  EXPECT_TRUE(addresses.ok()) << addresses.status();
  return addresses.ok() ? addresses->front() : SocketAddress();
}

TEST(Address, AnAddressThatIsNamedTwiceIsOne) {
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

TEST(Address, TextsNameAddressAndPort) {
  EXPECT_EQ(AddressAndPortText(AddressOf("10.1.2.3", 7700)), "10.1.2.3:7700");
  EXPECT_EQ(AddressAndPortText(AddressOf("fd00::1", 7700)), "[fd00::1]:7700");
  EXPECT_EQ(ListText(std::vector{AddressOf("10.1.2.3", 1), AddressOf("::1", 2)}),
            "10.1.2.3:1,[::1]:2");
}

TEST(Address, ALinkLocalAddressKeepsItsScope) {
  const SocketAddress address = AddressOf("fe80::1%lo", 7700);
  EXPECT_EQ(AddressAndPortText(address), "[fe80::1%lo]:7700");
}

TEST(Address, LoopbackIsAllOfItsAddresses) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(AddressOf(host, 1))) << host;
  }
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::", "fe80::1%lo", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(AddressOf(host, 1))) << host;
  }
  EXPECT_FALSE(OnlyLoopback(std::vector{AddressOf("127.0.0.1", 1), AddressOf("10.0.0.1", 1)}));
}

TEST(Address, ANameThatDoesNotExistIsNotFound) {
  const auto addresses = Resolve("no such host", 1, /*passive=*/false);
  EXPECT_EQ(addresses.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(addresses.status().message()), HasSubstr("'no such host'"));
}

TEST(Address, TheAddressTowardsAHostIsOneOfThisHost) {
  EXPECT_EQ(AddressTowards("127.0.0.1", 7700).value_or(""), "127.0.0.1");
  const auto unknown = AddressTowards("no-such-host.invalid", 7700);
  EXPECT_TRUE(absl::IsUnavailable(unknown.status())) << unknown.status();
}

}  // namespace
}  // namespace phub::net
