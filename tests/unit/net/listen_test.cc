#include "common/net/listen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace phub::net {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Listen, EveryAddressHasTheSamePortAndAnswers) {
  // All addresses of the host: one of each family.
  const auto addresses = Resolve("", 0, /*passive=*/true);
  const auto listening = Listen("", 0);
  ASSERT_TRUE(listening.ok()) << listening.status();
  EXPECT_GE(addresses->size(), 2u);
  EXPECT_EQ(listening->sockets.size(), listening->addresses.size());
  for (const SocketAddress& address : listening->addresses) {
    EXPECT_EQ(PortOf(address), listening->port);
    const SystemClock clock;
    EXPECT_TRUE(
        DialFirst(std::vector{address}, "self", {clock, clock.Now() + kSecond, kSecond}).ok())
        << AddressText(address);
  }
}

TEST(Listen, APortThatIsTakenIsNamedWithItsAddress) {
  const auto first = Listen("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const auto second = Listen("127.0.0.1", first->port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("127.0.0.1: Address already in use"), HasSubstr("another port")));
}

// The other family's port is free, but clients would reach the other process over one of them.
TEST(Listen, APortThatIsTakenForOneFamilyIsTaken) {
  const auto first = Listen("0.0.0.0", 0);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(Listen("", first->port).ok());
}

TEST(Listen, AnAddressOfAnotherHostIsNamed) {
  const auto listening = Listen("192.0.2.77", 0);
  EXPECT_EQ(listening.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listening.status().message()),
              AllOf(HasSubstr("192.0.2.77: Cannot assign requested address"),
                    HasSubstr("choose an address of this host")));
}

}  // namespace
}  // namespace phub::net
