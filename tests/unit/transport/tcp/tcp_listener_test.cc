#include "common/transport/tcp/tcp_listener.h"

#include <fmt/format.h>

#include "tests/support/eventually.h"
#include "tests/support/failing_calls.h"
#include "tests/unit/transport/tcp/listener_fixture.h"

namespace phub::transport {
namespace {

using TcpListenerTest = ListenerTest;

TEST_F(TcpListenerTest, AdmittedHelloBecomesAConnection) {
  Start();
  PlainClient client(listener->port());
  const wire::LaneHello hello = HelloWith("k1");
  ASSERT_TRUE(client.SendHello(hello));
  wire::LaneWelcome welcome;
  ASSERT_TRUE(client.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome, (wire::LaneWelcome{.version = wire::kLaneVersion,
                                        .refusal = wire::LaneRefusal::kNone,
                                        .version_min = wire::kLaneVersionMin,
                                        .version_max = wire::kLaneVersion}));
  std::vector<Attached> attached;
  ASSERT_TRUE(Eventually([&] {
    attached = gate.TakeAttached();
    return !attached.empty();
  }));
  EXPECT_EQ(attached[0].hello, hello);
  EXPECT_EQ(attached[0].peer_address, "127.0.0.1");
  EXPECT_EQ(static_cast<TcpConnection&>(*attached[0].connection).version(), wire::kLaneVersion);
  EXPECT_EQ(counters().accepted, 1u);
}

TEST_F(TcpListenerTest, BytesBehindTheHelloBelongToTheLane) {
  Start();
  PlainClient client(listener->port());
  std::array<std::byte, wire::kLaneHelloBytes + 5> bytes{};
  wire::EncodeLaneHello(HelloWith("k1"), std::span<std::byte, wire::kLaneHelloBytes>(
                                             bytes.data(), wire::kLaneHelloBytes));
  ASSERT_TRUE(client.Send(bytes));
  std::vector<Attached> attached;
  ASSERT_TRUE(Eventually([&] {
    attached = gate.TakeAttached();
    return !attached.empty();
  }));
  std::byte buffer[16];
  const iovec part{buffer, sizeof buffer};
  EXPECT_EQ(static_cast<TcpConnection&>(*attached[0].connection).Readv({&part, 1}).bytes, 5u);
}

TEST_F(TcpListenerTest, RefusalsAreToldByNameAndCounted) {
  Start();
  const struct {
    const char* nonce;
    wire::LaneRefusal refusal;
    const std::atomic<std::uint64_t>& counter;
  } cases[] = {
      {"unknown", wire::LaneRefusal::kNonce, counters().refused_nonce},
      {"job", wire::LaneRefusal::kJob, counters().refused_job},
      {"busy", wire::LaneRefusal::kBusy, counters().refused_busy},
      {"capacity", wire::LaneRefusal::kCapacity, counters().refused_capacity},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.nonce);
    PlainClient client(listener->port());
    ASSERT_TRUE(client.SendHello(HelloWith(item.nonce)));
    wire::LaneWelcome welcome;
    ASSERT_TRUE(client.ReceiveWelcome(welcome));
    EXPECT_EQ(welcome.refusal, item.refusal);
    EXPECT_EQ(welcome.version, 0u);
    EXPECT_TRUE(client.ReceiveAll().empty());
    EXPECT_TRUE(client.ended());
    EXPECT_EQ(item.counter, 1u);
  }
  EXPECT_TRUE(gate.TakeAttached().empty());
  EXPECT_EQ(counters().accepted, 0u);
}

TEST_F(TcpListenerTest, NonceServesOnce) {
  Start();
  PlainClient first(listener->port());
  ASSERT_TRUE(first.SendHello(HelloWith("k1")));
  wire::LaneWelcome welcome;
  ASSERT_TRUE(first.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kNone);
  PlainClient second(listener->port());
  ASSERT_TRUE(second.SendHello(HelloWith("k1")));
  ASSERT_TRUE(second.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kNonce);
}

TEST_F(TcpListenerTest, OtherVersionsAreRefusedBeforeTheNonceIsSpent) {
  Start();
  PlainClient client(listener->port());
  wire::LaneHello hello = HelloWith("k1");
  hello.version_min = wire::kLaneVersion + 1;
  hello.version_max = wire::kLaneVersion + 3;
  ASSERT_TRUE(client.SendHello(hello));
  wire::LaneWelcome welcome;
  ASSERT_TRUE(client.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kVersion);
  EXPECT_EQ(welcome.version_min, wire::kLaneVersionMin);
  EXPECT_EQ(welcome.version_max, wire::kLaneVersion);
  EXPECT_EQ(gate.asked(), 0u);
  EXPECT_EQ(counters().refused_version, 1u);
  // A newer client that still supports our version is accepted with it.
  PlainClient newer(listener->port());
  hello.version_min = wire::kLaneVersion;
  ASSERT_TRUE(newer.SendHello(hello));
  ASSERT_TRUE(newer.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.version, wire::kLaneVersion);
}

TEST_F(TcpListenerTest, WhatIsNoHelloIsClosedWithoutAnAnswer) {
  Start();
  PlainClient client(listener->port());
  const std::string request =
      "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nX-Pad: 0123456789\r\n\r\n";
  ASSERT_GE(request.size(), wire::kLaneHelloBytes);
  ASSERT_TRUE(client.Send(std::as_bytes(std::span(request))));
  EXPECT_TRUE(client.ReceiveAll().empty());
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(counters().refused_form, 1u);
  EXPECT_EQ(gate.asked(), 0u);
}

TEST_F(TcpListenerTest, DribbledHelloIsClosedAtTheDeadline) {
  TcpListenerOptions options;
  options.hello_timeout = 150 * kMillisecond;
  Start(options);
  PlainClient client(listener->port());
  std::array<std::byte, wire::kLaneHelloBytes> bytes;
  wire::EncodeLaneHello(HelloWith("k1"), bytes);
  const TimeNs before = clock.Now();
  // One byte every 20 ms: each makes progress, but all of them would take over a second.
  for (std::size_t i = 0; i + 1 < bytes.size() && counters().timeouts == 0; ++i) {
    client.Send({&bytes[i], 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(counters().timeouts, 1u);
  EXPECT_GE(clock.Now() - before, 150 * kMillisecond);
  EXPECT_LT(clock.Now() - before, 1000 * kMillisecond);
  EXPECT_TRUE(client.ReceiveAll().empty());
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(gate.asked(), 0u);
}

TEST_F(TcpListenerTest, PeerThatLeavesEarlyFreesItsPlace) {
  TcpListenerOptions options;
  options.pending_max = 1;
  Start(options);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    PlainClient client(listener->port());
    const std::byte byte{'P'};
    ASSERT_TRUE(client.Send({&byte, 1}));
    client.Close();
    ASSERT_TRUE(Eventually([&] { return counters().closed_early == i; }));
  }
  EXPECT_EQ(counters().over_capacity, 0u);
}

TEST_F(TcpListenerTest, OneAddressHasOnlySoManyPlaces) {
  TcpListenerOptions options;
  options.pending_per_address_max = 3;
  Start(options);
  std::vector<std::unique_ptr<PlainClient>> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(std::make_unique<PlainClient>(listener->port()));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  // Receive a fourth one. Expect: it displaces the oldest.
  PlainClient newcomer(listener->port());
  wire::LaneWelcome welcome;
  ASSERT_TRUE(silent[0]->ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kCapacity);
  EXPECT_EQ(counters().over_capacity, 1u);
  EXPECT_TRUE(Eventually([&] { return listener->pending_count() == 3u; }));
  ASSERT_TRUE(newcomer.SendHello(HelloWith("k9")));
  ASSERT_TRUE(newcomer.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kNone);
  // Expect: a place is free again when its client leaves or its hello is complete.
  silent.pop_back();
  ASSERT_TRUE(Eventually([&] { return counters().closed_early == 1; }));
  for (int i = 0; i < 5; ++i) {
    PlainClient admitted(listener->port());
    ASSERT_TRUE(admitted.SendHello(HelloWith(fmt::format("k{}", i))));
    ASSERT_TRUE(admitted.ReceiveWelcome(welcome));
    EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kNone);
  }
  EXPECT_EQ(counters().over_capacity, 1u);
}

TEST_F(TcpListenerTest, WithoutWatchesForEpollANewcomerIsRefusedByName) {
  Start();
  wire::LaneWelcome welcome;
  {
    const test::FailingCalls failing(test::CallKind::kEpollControl, 1,
                                     test::FailingCalls::Then::kWorks);
    PlainClient refused(listener->port());
    ASSERT_TRUE(refused.ReceiveWelcome(welcome));
    EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kCapacity);
    EXPECT_EQ(counters().accept_errors, 1u);
  }
  PlainClient next(listener->port());
  ASSERT_TRUE(next.SendHello(HelloWith("k1")));
  ASSERT_TRUE(next.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kNone);
}

TEST_F(TcpListenerTest, TableOfPendingConnectionsIsBounded) {
  TcpListenerOptions options;
  options.pending_max = 2;
  Start(options);
  PlainClient oldest(listener->port());
  PlainClient b(listener->port());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  PlainClient newcomer(listener->port());
  wire::LaneWelcome welcome;
  ASSERT_TRUE(oldest.ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kCapacity);
  EXPECT_TRUE(Eventually([&] { return listener->pending_count() == 2u; }));
}

TEST_F(TcpListenerTest, ANewcomerDisplacesTheOldestOfTheAddressWithTheMost) {
  TcpListenerOptions options;
  options.pending_max = 4;
  Start(options);
  constexpr std::uint32_t kCrowd = INADDR_LOOPBACK + 1;
  constexpr std::uint32_t kOther = INADDR_LOOPBACK + 2;
  PlainClient alone(listener->port(), kOther);
  std::vector<std::unique_ptr<PlainClient>> crowd;
  for (int i = 0; i < 3; ++i) {
    crowd.push_back(std::make_unique<PlainClient>(listener->port(), kCrowd));
    ASSERT_TRUE(
        Eventually([&] { return listener->pending_count() == 2u + static_cast<unsigned>(i); }));
  }
  PlainClient newcomer(listener->port());
  wire::LaneWelcome welcome;
  ASSERT_TRUE(crowd[0]->ReceiveWelcome(welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kCapacity);
  // Expect: the others of the table keep their places.
  ASSERT_TRUE(newcomer.SendHello(HelloWith("k1")));
  ASSERT_TRUE(alone.SendHello(HelloWith("k2")));
  for (PlainClient* const client : {&alone, &newcomer}) {
    ASSERT_TRUE(client->ReceiveWelcome(welcome));
    EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kNone);
  }
  EXPECT_EQ(counters().over_capacity, 1u);
}

TEST_F(TcpListenerTest, BindErrorsSayWhereAndWhy) {
  Start();
  TcpListenerOptions taken;
  taken.port = listener->port();
  const auto second = TcpListener::Create(taken, gate, clock);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().ToString().find(fmt::format("127.0.0.1:{}", listener->port())),
            std::string::npos)
      << second.status();
  EXPECT_NE(second.status().ToString().find("in use"), std::string::npos) << second.status();
  TcpListenerOptions unknown;
  unknown.host = "no.such.host.invalid";
  const auto nowhere = TcpListener::Create(unknown, gate, clock);
  // Not found, or, without a name server, not available.
  EXPECT_NE(nowhere.status().ToString().find("cannot resolve 'no.such.host.invalid'"),
            std::string::npos)
      << nowhere.status();
}

}  // namespace
}  // namespace phub::transport
