// The shares of clients in the control port's connections when these are scarce.
#include "server/control/ports/control_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace phub::server {
namespace {

constexpr in_addr_t kHost = INADDR_LOOPBACK;
constexpr in_addr_t kOtherHost = INADDR_LOOPBACK + 1;  // 127.0.0.0/8 is this host

TEST(ControlPortLimits, AreWhatTheyAreWhereThereIsEnough) {
  const ControlPortOptions options;
  const ControlPortOptions scaled = ScaledTo(options, 1 << 20);
  EXPECT_EQ(scaled.connections_max, options.connections_max);
  EXPECT_EQ(scaled.connections_per_address_max, options.connections_per_address_max);
  EXPECT_EQ(scaled.silent_max, options.silent_max);
  EXPECT_EQ(scaled.silent_per_address_max, options.silent_per_address_max);
  EXPECT_EQ(scaled.strangers_max, options.strangers_max);
  EXPECT_EQ(scaled.strangers_per_address_max, options.strangers_per_address_max);
}

TEST(ControlPortLimits, LeaveOthersRoomWithAnyNumberOfDescriptors) {
  for (const std::uint64_t descriptors : {64, 256, 1024, 4096, 16'384}) {
    SCOPED_TRACE(descriptors);
    const ControlPortOptions scaled = ScaledTo({}, descriptors);
    EXPECT_LE(scaled.connections_max, descriptors / 2);
    EXPECT_LE(scaled.connections_per_address_max, scaled.connections_max / 2);
    EXPECT_LT(scaled.silent_max + scaled.strangers_max, scaled.connections_max / 2 + 1);
    EXPECT_LE(scaled.silent_per_address_max, scaled.silent_max / 4);
    EXPECT_LE(scaled.strangers_per_address_max, std::max(1u, scaled.strangers_max / 4));
    EXPECT_GE(scaled.strangers_per_address_max, 1u);
  }
}

Descriptor ConnectFrom(in_addr_t from, std::uint16_t port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(from);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(kHost);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST(ControlPortLimits, OneAddressThatIsSilentKeepsNobodyOutOfASmallProcess) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 1024) GTEST_SKIP() << "this process itself has too few descriptors";
  rlimit small = limit;
  small.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  const auto port = ControlPort::Create({});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(port.ok()) << port.status();
  std::atomic<int> handed{0};
  (*port)->Start([&](int, Descriptor) { ++handed; }, [](const ControlPortRefusals&) {});
  std::vector<Descriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(ConnectFrom(kOtherHost, (*port)->port()));
  const Descriptor client = ConnectFrom(kHost, (*port)->port());
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  ASSERT_EQ(send(client.get(), preface.data(), preface.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(preface.size()));
  for (int i = 0; i < 500 && handed == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(handed, 1);
  (*port)->Stop();
}

}  // namespace
}  // namespace phub::server
