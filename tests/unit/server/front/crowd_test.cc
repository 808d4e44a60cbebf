#include "server/front/crowd.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <map>
#include <optional>

#include "common/net/host_port.h"

namespace phub::server {
namespace {

net::SocketAddress AddressOf6(const char* text) {
  net::SocketAddress address;
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  v6.sin6_family = AF_INET6;
  EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
  address.bytes = sizeof v6;
  return address;
}

TEST(Crowd, ANetworkOfIpv6CountsAsOneAddress) {
  EXPECT_EQ(BlockOf(AddressOf6("2001:db8:1:2::1")), BlockOf(AddressOf6("2001:db8:1:2:ffff::9")));
  EXPECT_NE(BlockOf(AddressOf6("2001:db8:1:2::1")), BlockOf(AddressOf6("2001:db8:1:3::1")));
  EXPECT_NE(BlockOf(AddressOf6("::ffff:10.0.0.1")), BlockOf(AddressOf6("::ffff:10.0.0.2")));
  EXPECT_EQ(BlockOf(AddressOf6("::ffff:10.0.0.1")), net::AddressBlock("10.0.0.1:7700"));
}

// The attack that kept everyone out: 205 connections per second, from 4 addresses, that complete
// their first message and then say nothing.
TEST(Crowd, NewcomersGetInWhileOthersFloodThePort) {
  Crowd crowd{CrowdLimits{}};
  Crowd::Id next = 1;
  TimeNs now = 0;
  const auto come = [&](const std::string& block) {
    const Crowd::Id id = next++;
    EXPECT_TRUE(crowd.Add(id, block, now).granted);
    return std::pair(id, crowd.MakeStranger(id, now));
  };
  for (int i = 0; i < 2000; ++i) {
    come(std::string(1, static_cast<char>('a' + i % 4)));
    now += kSecond / 205;
  }
  EXPECT_LE(crowd.strangers(), CrowdLimits{}.strangers_max);
  const auto [id, place] = come("honest");
  EXPECT_TRUE(place.granted);
  ASSERT_TRUE(place.displaced.has_value());
  EXPECT_LT(*place.displaced, id - CrowdLimits{}.strangers_max / 2);
  // It keeps its place while the flood goes on for another 5 s.
  for (int i = 0; i < 205 * 5; ++i) {
    EXPECT_NE(come(std::string(1, static_cast<char>('a' + i % 4))).second.displaced, id);
    now += kSecond / 205;
  }
  crowd.MakeKnown(id, "acme");
  EXPECT_EQ(crowd.known(), 1u);
  crowd.Remove(id);
  EXPECT_EQ(crowd.known(), 0u);
}

TEST(Crowd, ABurstOfOneAddressWaitsForPlacesAndDisplacesNobodyAtOnce) {
  Crowd crowd{CrowdLimits{}};
  const std::uint32_t places = CrowdLimits{}.strangers_max;
  for (Crowd::Id id = 0; id < places; ++id) {
    ASSERT_TRUE(crowd.Add(id, "host", 0).granted);
    ASSERT_TRUE(crowd.MakeStranger(id, 0).granted);
  }
  ASSERT_TRUE(crowd.Add(places, "host", 0).granted);
  EXPECT_FALSE(crowd.MakeStranger(places, 0).granted);
  crowd.MakeKnown(7, "acme");
  const Crowd::Place place = crowd.MakeStranger(places, 0);
  EXPECT_TRUE(place.granted);
  EXPECT_FALSE(place.displaced.has_value());
}

TEST(Crowd, SilentConnectionsDisplaceTheOldestOfTheirAddress) {
  CrowdLimits limits;
  limits.silent_max = 10;
  limits.silent_per_block_max = 8;
  Crowd crowd{limits};
  for (Crowd::Id id = 0; id < 8; ++id) EXPECT_FALSE(crowd.Add(id, "a", 0).displaced.has_value());
  EXPECT_EQ(crowd.Add(8, "a", 0).displaced, Crowd::Id{0});
  crowd.Add(9, "b", 0);
  crowd.Add(10, "c", 0);
  EXPECT_EQ(crowd.Add(11, "d", 0).displaced, Crowd::Id{1});
  EXPECT_EQ(crowd.silent(), 10u);
}

TEST(Crowd, OfATenantsConnectionsTheLeastUsedAndThenTheOldestIsDisplaced) {
  Crowd crowd{CrowdLimits{}};
  using Use = Crowd::Use;
  std::map<Crowd::Id, Use> uses = {{1, Use::kCalls},  {2, Use::kEvents},  {3, Use::kNothing},
                                   {4, Use::kEvents}, {5, Use::kNothing}, {6, Use::kCalls}};
  for (const auto& [id, use] : uses) {
    crowd.Add(id, "a", 0);
    crowd.MakeStranger(id, 0);
    crowd.MakeKnown(id, "acme");
  }
  // Another address, another tenant, and no tenant's.
  crowd.Add(7, "b", 0);
  crowd.Add(8, "a", 0);
  crowd.Add(9, "a", 0);
  for (const Crowd::Id id : {7, 8, 9}) crowd.MakeStranger(id, 0);
  crowd.MakeKnown(7, "acme");
  crowd.MakeKnown(8, "zeta");
  crowd.MakeKnown(9, "");
  const auto use_of = [&](Crowd::Id id) { return uses.at(id); };
  for (const Crowd::Id expected : {3, 5, 2, 4, 1, 6})
    EXPECT_EQ(crowd.DisplaceKnown("acme", "a", use_of), expected);
  EXPECT_EQ(crowd.DisplaceKnown("acme", "a", use_of), std::nullopt);
  EXPECT_EQ(crowd.known(), 3u);
}

TEST(Crowd, FewDescriptorsMeanFewConnections) {
  const CrowdLimits limits = ScaledTo({}, 1024);
  EXPECT_EQ(limits.connections_max, 512u);
  EXPECT_EQ(limits.known_max, 384u);
  EXPECT_EQ(limits.strangers_max, 64u);
  EXPECT_EQ(ScaledTo({}, 1 << 20).connections_max, CrowdLimits{}.connections_max);
}

}  // namespace
}  // namespace phub::server
