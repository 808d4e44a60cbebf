#include "common/transport/tcp/tcp_dial.h"

#include <fmt/core.h>

#include "common/transport/tcp/tcp_transport.h"
#include "tests/support/eventually.h"
#include "tests/unit/transport/tcp/listener_fixture.h"

namespace phub::transport {
namespace {

using TcpDialTest = ListenerTest;

bool Contains(const absl::Status& status, const std::string& text) {
  return status.ToString().find(text) != std::string::npos;
}

TEST_F(TcpDialTest, DialledLaneCarriesMessagesBothWays) {
  Start();
  wire::LaneHello hello = HelloWith("k1");
  hello.version_min = hello.version_max = 0;  // the versions of this build
  auto dialled = DialTcp("127.0.0.1", listener->port(), hello, 5 * kSecond);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  std::vector<Attached> attached;
  ASSERT_TRUE(Eventually([&] {
    attached = gate.TakeAttached();
    return !attached.empty();
  }));
  TcpTransport client;
  TcpTransport server;
  std::vector<std::byte> memory(16);
  const LandingSlot slot{memory.data(), 16};
  const ConnectionId at_client = client.Adopt(**dialled, {});
  const ConnectionId at_server = server.Adopt(*attached[0].connection, {&slot, 1});
  const std::vector<std::byte> payload(16, std::byte{0x5A});
  wire::MessageHeader gradient;
  gradient.kind = wire::MessageKind::kGradient;
  gradient.slot = SlotIndex{0};
  gradient.payload_bytes = 16;
  const SendRequest up{.header = gradient, .payload = payload, .connections = {&at_client, 1}};
  ASSERT_EQ(client.Post({&up, 1}), 1u);
  wire::MessageHeader credit;
  credit.kind = wire::MessageKind::kCredit;
  const SendRequest down{.header = credit, .payload = {}, .connections = {&at_server, 1}};
  ASSERT_EQ(server.Post({&down, 1}), 1u);
  Completion completion;
  std::size_t to_server = 0;
  std::size_t to_client = 0;
  ASSERT_TRUE(Eventually([&] {
    to_server += server.Poll({&completion, 1});
    to_client += client.Poll({&completion, 1});
    return to_server == 1 && to_client == 1;
  }));
  EXPECT_EQ(memory, payload);
}

TEST_F(TcpDialTest, NamesAreResolved) {
  Start();
  const auto dialled = DialTcp("localhost", listener->port(), HelloWith("k1"), 5 * kSecond);
  EXPECT_TRUE(dialled.ok()) << dialled.status();
}

TEST_F(TcpDialTest, RefusalOfVersionNamesBothSides) {
  Start();
  wire::LaneHello hello = HelloWith("k1");
  hello.version_min = hello.version_max = wire::kLaneVersion + 1;
  const auto dialled = DialTcp("127.0.0.1", listener->port(), hello, 5 * kSecond);
  EXPECT_EQ(dialled.status().code(), absl::StatusCode::kFailedPrecondition);
  const unsigned newest = wire::kLaneVersion;
  EXPECT_TRUE(
      Contains(dialled.status(),
               fmt::format("the daemon supports lane versions {}..{}, this client {}..{}",
                           unsigned{wire::kLaneVersionMin}, newest, newest + 1, newest + 1)))
      << dialled.status();
}

TEST_F(TcpDialTest, EachRefusalHasItsCode) {
  Start();
  const struct {
    const char* nonce;
    absl::StatusCode code;
  } cases[] = {{"unknown", absl::StatusCode::kPermissionDenied},
               {"job", absl::StatusCode::kFailedPrecondition},
               {"busy", absl::StatusCode::kAlreadyExists},
               {"capacity", absl::StatusCode::kResourceExhausted}};
  for (const auto& item : cases) {
    const auto dialled = DialTcp("127.0.0.1", listener->port(), HelloWith(item.nonce), 5 * kSecond);
    EXPECT_EQ(dialled.status().code(), item.code) << dialled.status();
    EXPECT_TRUE(Contains(dialled.status(), "rank 3")) << dialled.status();
    EXPECT_TRUE(Contains(dialled.status(), std::to_string(listener->port()))) << dialled.status();
  }
}

TEST_F(TcpDialTest, ErrorsSayWhoDidNotAnswer) {
  std::uint16_t unused_port = 0;
  {
    const auto gone = TcpListener::Create({}, gate, clock);
    ASSERT_TRUE(gone.ok());
    unused_port = (*gone)->port();
  }
  const auto refused = DialTcp("127.0.0.1", unused_port, HelloWith("k"), 5 * kSecond);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(refused.status(), "127.0.0.1:" + std::to_string(unused_port)));
  EXPECT_TRUE(Contains(refused.status(), "refused")) << refused.status();
  const auto unknown = DialTcp("no.such.host.invalid", 1, HelloWith("k"), 5 * kSecond);
  EXPECT_TRUE(Contains(unknown.status(), "cannot resolve 'no.such.host.invalid'"))
      << unknown.status();
}

TEST_F(TcpDialTest, SilentListenerMeetsTheDeadline) {
  // The kernel's backlog accepts connections, but no one ever answers.
  const auto silent = TcpListener::Create({}, gate, clock);
  ASSERT_TRUE(silent.ok());
  const TimeNs before = clock.Now();
  const auto dialled = DialTcp("127.0.0.1", (*silent)->port(), HelloWith("k"), 100 * kMillisecond);
  EXPECT_EQ(dialled.status().code(), absl::StatusCode::kDeadlineExceeded) << dialled.status();
  EXPECT_GE(clock.Now() - before, 100 * kMillisecond);
  EXPECT_LT(clock.Now() - before, 3 * kSecond);
}

TEST_F(TcpDialTest, ADiallerGetsInWhereSilentPeersHaveAllPlaces) {
  TcpListenerOptions options;
  options.pending_per_address_max = 1;
  Start(options);
  PlainClient silent(listener->port());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto dialled = DialTcp("127.0.0.1", listener->port(), HelloWith("k"), 5 * kSecond);
  EXPECT_TRUE(dialled.ok()) << dialled.status();
}

}  // namespace
}  // namespace phub::transport
