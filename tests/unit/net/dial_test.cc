#include "common/net/dial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include "common/net/listen.h"

namespace phub::net {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// An address that swallows packets: the queue of a listening socket that never accepts is full.
class Swallower {
 public:
  explicit Swallower(const std::string& host) {
    auto made = Listen(host, 0, {.backlog = 0});
    EXPECT_TRUE(made.ok()) << made.status();
    listening_ = *std::move(made);
    for (int i = 0; i < 4; ++i) {
      fillers_.push_back(PlainSocket(AF_INET));
      (void)connect(fillers_.back().get(), address().get(), address().bytes);
    }
  }
  const SocketAddress& address() const { return listening_.addresses.front(); }

 private:
  Listening listening_;
  std::vector<Descriptor> fillers_;
};

class DialTest : public ::testing::Test {
 protected:
  absl::StatusOr<Dialled> DialAll(const std::vector<SocketAddress>& addresses, DurationNs timeout) {
    return DialFirst(addresses, "ps:7700", {clock_, clock_.Now() + timeout, timeout});
  }
  const SystemClock clock_;
  const Listening server_ = *Listen("127.0.0.1", 0);
  // A port of this host where nobody listens.
  const SocketAddress refusing_ = [] {
    const Listening closed = *Listen("127.0.0.3", 0);
    return closed.addresses.front();
  }();
};

TEST_F(DialTest, TheSecondAddressIsUsedWhileTheFirstSwallowsPackets) {
  const Swallower dead("127.0.0.2");
  const TimeNs start = clock_.Now();
  const auto dialled = DialAll({dead.address(), server_.addresses.front()}, 30 * kSecond);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  EXPECT_EQ(AddressText(dialled->address), "127.0.0.1");
  EXPECT_LT(clock_.Now() - start, 10 * kSecond);
}

TEST_F(DialTest, ARefusalStartsTheNextAttemptAtOnce) {
  const TimeNs start = clock_.Now();
  std::vector<SocketAddress> addresses(100, refusing_);
  addresses.push_back(server_.addresses.front());
  const auto dialled = DialAll(addresses, 60 * kSecond);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  EXPECT_LT(clock_.Now() - start, 100 * kNextAddressAfter);
}

TEST_F(DialTest, AShortTimeoutLeavesTimeForEveryAddress) {
  const Swallower dead("127.0.0.2");
  const auto dialled =
      DialAll({dead.address(), dead.address(), server_.addresses.front()}, 700 * kMillisecond);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
}

TEST_F(DialTest, TheErrorHasTheCauseOfEveryAddress) {
  const Swallower dead("127.0.0.2");
  const auto dialled = DialAll({dead.address(), refusing_}, 300 * kMillisecond);
  EXPECT_EQ(dialled.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(dialled.status().message()),
              AllOf(HasSubstr("cannot connect to ps:7700"),
                    HasSubstr("127.0.0.2: could not be reached within 300 ms"),
                    HasSubstr("127.0.0.3: Connection refused")));
  const auto refused = DialAll({refusing_}, kSecond);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(refused.status().message()),
            "cannot connect to ps:7700 (127.0.0.3: Connection refused)");
}

TEST_F(DialTest, AnAddressIsNotNamedTwice) {
  const auto refused = DialFirst(std::vector{refusing_}, AddressAndPortText(refusing_),
                                 {clock_, clock_.Now() + kSecond, kSecond});
  EXPECT_EQ(std::string(refused.status().message()),
            "cannot connect to " + AddressAndPortText(refusing_) + ": Connection refused");
}

TEST_F(DialTest, ALackOfDescriptorsIsTheCause) {
  const auto none = [](sa_family_t) {
    errno = EMFILE;
    return Descriptor();
  };
  const auto dialled =
      DialFirst(server_.addresses, "ps:7700", {clock_, clock_.Now() + kSecond, kSecond}, none);
  EXPECT_THAT(std::string(dialled.status().message()), HasSubstr("Too many open files"));
}

SocketAddress Numeric(const std::string& host) {
  return Resolve(host, 1, /*passive=*/false)->front();
}

TEST_F(DialTest, AHostWithoutIpv6LacksNothing) {
  SocketAddress other;
  other.storage.ss_family = AF_INET6;
  other.bytes = sizeof(sockaddr_in6);
  const auto make = [](sa_family_t family) {
    if (family == AF_INET) return PlainSocket(family);
    errno = EAFNOSUPPORT;
    return Descriptor();
  };
  const auto dialled = DialFirst(std::vector{other, refusing_}, "ps:7700",
                                 {clock_, clock_.Now() + kSecond, kSecond}, make);
  EXPECT_EQ(dialled.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(dialled.status().message()),
              AllOf(HasSubstr("Address family not supported"), HasSubstr("Connection refused")));
}

TEST(Interleaving, FamiliesAlternateAndTheFirstStaysFirst) {
  const SocketAddress a4 = Numeric("10.0.0.1");
  const SocketAddress b4 = Numeric("10.0.0.2");
  const SocketAddress c4 = Numeric("10.0.0.3");
  const SocketAddress a6 = Numeric("fd00::1");
  std::vector<std::string> order;
  for (const SocketAddress& each : Interleaved(std::vector{a4, b4, c4, a6})) {
    order.push_back(AddressText(each));
  }
  EXPECT_THAT(order, ElementsAre("10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3"));
  EXPECT_TRUE(Interleaved({}).empty());
}

}  // namespace
}  // namespace phub::net
