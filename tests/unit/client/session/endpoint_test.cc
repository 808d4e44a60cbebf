#include "client/session/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::client {
namespace {

TEST(ParseEndpoint, TakesHostAndPortWithOrWithoutTheScheme) {
  for (const char* text : {"phub://rack7:7700", "rack7:7700"}) {
    const auto endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint->host, "rack7");
    EXPECT_EQ(endpoint->port, 7700);
    EXPECT_EQ(endpoint->ToString(), "rack7:7700");
  }
}

TEST(ParseEndpoint, TakesIpv6InBrackets) {
  const auto endpoint = ParseEndpoint("phub://[fe80::1]:80");
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->host, "fe80::1");
  EXPECT_EQ(endpoint->ToString(), "[fe80::1]:80");
}

TEST(ParseEndpoint, HasADefaultPortWithTheScheme) {
  EXPECT_EQ(ParseEndpoint("phub://rack7")->ToString(), "rack7:7700");
  EXPECT_EQ(ParseEndpoint("phub://10.0.0.7")->ToString(), "10.0.0.7:7700");
  EXPECT_EQ(ParseEndpoint("phub://[fe80::1]")->ToString(), "[fe80::1]:7700");
  for (const char* text : {"phub://fe80::1", "phub://rack7/x", "phub://rack 7", "phub://[]"})
    EXPECT_FALSE(ParseEndpoint(text).ok()) << text;
}

TEST(ParseEndpoint, RefusesEverythingElseAndShowsTheForm) {
  for (const char* text :
       {"", "rack7", ":7700", "rack7:", "rack7:0", "rack7:65536", "rack7:77x", "rack7:-1",
        "http://rack7:7700", "fe80::1:7700", "rack 7:7700", "rack7/x:7700", "phub://", "[]:7700"}) {
    const auto endpoint = ParseEndpoint(text);
    ASSERT_FALSE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(endpoint.status().message(), ::testing::HasSubstr("phub://HOST:PORT"));
  }
}

}  // namespace
}  // namespace phub::client
