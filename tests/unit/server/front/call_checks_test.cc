#include "server/front/call_checks.h"

#include <gtest/gtest.h>

namespace phub::server {
namespace {

HeaderList Plain() {
  return {{":method", "POST"}, {":path", "/a.B/C"}, {"content-type", "application/grpc"}};
}

TEST(CallChecks, OnlyPlainCallsOfGrpcPass) {
  ReceivedHeaders received;
  received.list = Plain();
  EXPECT_FALSE(RefusalOf(received).has_value());
  received.list.emplace_back("grpc-encoding", "identity");
  EXPECT_FALSE(RefusalOf(received).has_value());
  received.list.back().second = "gzip";
  ASSERT_TRUE(RefusalOf(received).has_value());
  EXPECT_EQ(FindHeader(*RefusalOf(received), "grpc-status"), "12");
  received.list = Plain();
  received.list[0].second = "GET";
  EXPECT_EQ(FindHeader(*RefusalOf(received), ":status"), "415");
  received.too_large = true;
  EXPECT_EQ(FindHeader(*RefusalOf(received), "grpc-status"), "8");
}

TEST(CallChecks, HeadersThatNameACallerAreRemoved) {
  HeaderList headers = Plain();
  headers.emplace_back("x-forwarded-for", "10.0.0.1");
  headers.emplace_back("phub-peer", "root");
  headers.emplace_back("authorization", "Bearer x");
  StripIdentity(headers);
  EXPECT_EQ(headers.size(), 4u);
  EXPECT_EQ(FindHeader(headers, "authorization"), "Bearer x");
}

TEST(CallChecks, MessagesAreEncodedAsGrpcDoes) {
  EXPECT_EQ(FindHeader(RefusalHeaders(16, "50% \n"), "grpc-message"), "50%25 %0A");
}

TEST(CallChecks, AHealthRequestIsReadCompletelyOrNotAtAll) {
  const auto message = [](std::string body) {
    return std::string("\0\0\0\0", 4) + static_cast<char>(body.size()) + body;
  };
  EXPECT_EQ(HealthServiceOf(message("")), "");
  EXPECT_EQ(HealthServiceOf(message("\x0a\x03"
                                    "abc")),
            "abc");
  EXPECT_EQ(HealthServiceOf(message("\x0a\x04"
                                    "abc")),
            std::nullopt);
  EXPECT_EQ(HealthServiceOf(message("\x12\x03"
                                    "abc")),
            std::nullopt);
  EXPECT_EQ(HealthServiceOf(""), std::nullopt);
  EXPECT_EQ(HealthServiceOf(std::string("\1\0\0\0\0", 5)), std::nullopt);  // compressed
}

}  // namespace
}  // namespace phub::server
