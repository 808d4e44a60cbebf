#include "common/net/host_port.h"

#include <gtest/gtest.h>

namespace phub::net {
namespace {

TEST(HostAndPort, WhatIsWrittenIsReadAgain) {
  for (const char* text : {"127.0.0.1:7700", "[::1]:80", "[fe80::1%eth0]:1", "node5:0"}) {
    const auto parsed = ParseHostAndPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(HostPort(parsed->host, parsed->port), text);
  }
}

TEST(HostAndPort, AnythingElseIsRefused) {
  for (const char* text :
       {"", "node5", ":1", "node5:", "node5:65536", "node5:7x", "::1:80", "a:-1"}) {
    EXPECT_FALSE(ParseHostAndPort(text).ok()) << text;
  }
}

TEST(AddressBlock, IsAnAddressOrANetworkOf64Bits) {
  EXPECT_EQ(AddressBlock("10.0.0.5:40112"), "10.0.0.5");
  EXPECT_EQ(AddressBlock("10.0.0.5"), "10.0.0.5");
  EXPECT_EQ(AddressBlock("[2001:db8:0:1::7]:40112"), "2001:db8:0:1::/64");
  EXPECT_EQ(AddressBlock("2001:db8:0:1:ffff::9"), "2001:db8:0:1::/64");
  EXPECT_EQ(AddressBlock("[fe80::1%eth0]:80"), AddressBlock("fe80::2%eth0"));
  EXPECT_EQ(AddressBlock("::ffff:10.0.0.1"), "::ffff:10.0.0.1");
  EXPECT_EQ(AddressBlock("control socket"), "control socket");
  EXPECT_EQ(AddressBlock("uid 1000"), "uid 1000");
  EXPECT_EQ(AddressBlock(""), "");
}

TEST(HostAndPort, NamesAreNotNumeric) {
  EXPECT_TRUE(IsNumeric("10.0.0.1"));
  EXPECT_TRUE(IsNumeric("fd00::1"));
  for (const char* host : {"node5", "localhost", "10.0.0", "[::1]", ""}) {
    EXPECT_FALSE(IsNumeric(host)) << host;
  }
}

TEST(HostAndPort, LoopbackHosts) {
  for (const char* host : {"localhost", "127.0.1.1", "::1"}) EXPECT_TRUE(IsLoopbackHost(host));
  for (const char* host : {"node5", "0.0.0.0", "10.0.0.1", "::"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace phub::net
