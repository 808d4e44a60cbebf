#include "server/front/stream_relay.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>

#include "tests/unit/server/front/h2_peer.h"

namespace phub::server {
namespace {

class StreamRelayTest : public ::testing::Test, public StreamRelay::Host {
 protected:
  void Judge(const HeaderList& headers) override { judged.push_back(headers); }

  // Until nobody has anything to say.
  void Settle() {
    for (bool more = true; more;) {
      more = false;
      const auto move = [&](std::string_view bytes, const auto& receive) {
        more |= !bytes.empty();
        if (!bytes.empty()) receive(std::string(bytes));
      };
      move(client.session.Next(), [&](const std::string& b) { relay.ReceiveFromClient(b, now); });
      move(relay.NextForClient(), [&](const std::string& b) { client.session.Receive(b); });
      move(relay.NextForUpstream(), [&](const std::string& b) { grpc.session.Receive(b); });
      if (relay.opened()) {
        move(grpc.session.Next(), [&](const std::string& b) { relay.ReceiveFromUpstream(b); });
      }
      most_bytes = std::max(most_bytes, relay.bytes());
    }
  }
  static HeaderList Call(const std::string& path) {
    return {{":method", "POST"},       {":scheme", "http"},
            {":path", path},           {":authority", "x"},
            {"te", "trailers"},        {"content-type", "application/grpc"},
            {"grpc-timeout", "1500m"}, {"x-forwarded-for", "1.2.3.4"}};
  }
  std::int32_t Begin(bool ended = false, const std::string& path = "/a.B/C") {
    const std::int32_t stream = client.session.Request(Call(path), ended);
    Settle();
    return stream;
  }
  void Open() {
    relay.Open();
    Settle();
  }

  TimeNs now = 0;
  std::vector<HeaderList> judged;
  std::size_t most_bytes = 0;
  H2Peer client{H2Side::kClient};
  H2Peer grpc{H2Side::kServer};
  StreamRelay relay{*this, /*serving=*/true, 0};
};

TEST_F(StreamRelayTest, ACallPassesWithHeadersBodyHalfCloseAndTrailers) {
  Begin();
  ASSERT_EQ(judged.size(), 1u);
  EXPECT_TRUE(grpc.first.empty());  // nothing reaches gRPC before the verdict
  client.to_send.Append("question");
  client.session.Resume(1);
  Settle();
  Open();
  EXPECT_EQ(FindHeader(grpc.first, "grpc-timeout"), "1500m");
  EXPECT_EQ(FindHeader(grpc.first, "x-forwarded-for"), "");
  EXPECT_EQ(grpc.received, "question");
  EXPECT_EQ(grpc.ends, 0);
  client.ended = true;
  client.session.Resume(1);
  Settle();
  EXPECT_EQ(grpc.ends, 1);
  grpc.to_send.Append("answer");
  grpc.ended = true;
  grpc.own_trailers = {{"grpc-status", "0"}, {"grpc-message", "fine"}};
  grpc.session.Respond(grpc.last_stream, AnswerHeaders(), false);
  Settle();
  EXPECT_EQ(client.received, "answer");
  EXPECT_EQ(FindHeader(client.trailers, "grpc-message"), "fine");
  EXPECT_EQ(client.closed, 1);
  EXPECT_EQ(client.last_error, std::uint32_t{NGHTTP2_NO_ERROR});
}

TEST_F(StreamRelayTest, ManyWindowsPassBothWaysAndOnlyAWindowIsHeld) {
  Begin();
  Open();
  const std::string body(16 << 20, 'x');
  client.to_send.Append(body);
  client.session.Resume(1);
  grpc.consumes = false;
  grpc.session.Respond(grpc.last_stream, AnswerHeaders(), false);
  Settle();
  // gRPC reads nothing: its window is full, and the relay has at most one more.
  EXPECT_EQ(grpc.received.size(), 65'535u);
  EXPECT_LE(most_bytes, kKnownWindow + (256u << 10));
  grpc.consumes = true;
  grpc.session.Consume(grpc.last_stream, grpc.received.size());
  client.ended = true;
  Settle();
  EXPECT_EQ(grpc.received.size(), body.size());
  EXPECT_EQ(grpc.ends, 1);
  most_bytes = 0;
  client.consumes = false;
  grpc.to_send.Append(body);
  grpc.ended = true;
  grpc.session.Resume(grpc.last_stream);
  Settle();
  EXPECT_EQ(client.received.size(), 65'535u);
  EXPECT_LE(most_bytes, kKnownWindow + (256u << 10));
  client.consumes = true;
  client.session.Consume(1, client.received.size());
  Settle();
  EXPECT_EQ(client.received.size(), body.size());
  EXPECT_EQ(client.closed, 1);
}

TEST_F(StreamRelayTest, ResetsPassBothWays) {
  Begin();
  Open();
  client.session.Reset(1, NGHTTP2_CANCEL);
  Settle();
  EXPECT_EQ(grpc.closed, 1);
  EXPECT_EQ(grpc.last_error, std::uint32_t{NGHTTP2_CANCEL});
  const std::int32_t second = Begin();
  grpc.session.Reset(grpc.last_stream, NGHTTP2_ENHANCE_YOUR_CALM);
  Settle();
  EXPECT_EQ(second, 3);
  EXPECT_EQ(client.closed, 2);
  EXPECT_EQ(client.last_error, std::uint32_t{NGHTTP2_ENHANCE_YOUR_CALM});
}

TEST_F(StreamRelayTest, KnowsWhatItIsUsedFor) {
  Begin(false, "/phub.v1.Session/Attend");
  Open();
  EXPECT_EQ(relay.use(), Crowd::Use::kEvents);
  const std::int32_t call = Begin();
  EXPECT_EQ(relay.use(), Crowd::Use::kCalls);
  client.session.Reset(call, NGHTTP2_CANCEL);
  Settle();
  EXPECT_EQ(relay.use(), Crowd::Use::kEvents);
  client.session.Reset(1, NGHTTP2_CANCEL);
  Settle();
  EXPECT_EQ(relay.use(), Crowd::Use::kNothing);
}

TEST_F(StreamRelayTest, AWholeAnswerBeforeTheEndOfTheRequestArrives) {
  Begin();
  Open();
  grpc.session.Respond(grpc.last_stream, RefusalHeaders(7, "no"), true);
  Settle();
  grpc.session.Reset(grpc.last_stream, NGHTTP2_NO_ERROR);
  Settle();
  EXPECT_EQ(FindHeader(client.first, "grpc-status"), "7");
  EXPECT_EQ(client.closed, 1);
  EXPECT_EQ(client.last_error, std::uint32_t{NGHTTP2_NO_ERROR});
}

TEST_F(StreamRelayTest, PingsAreAnsweredByTheFarEnd) {
  const std::uint8_t opaque[8] = {1};
  client.session.Ping(opaque, false);
  Settle();
  EXPECT_EQ(client.acks, 1);  // before there is an upstream, by the relay
  Begin();
  Open();
  client.session.Ping(opaque, false);
  Settle();
  EXPECT_EQ(grpc.pings, 1);
  EXPECT_EQ(client.acks, 2);
  grpc.session.Ping(opaque, false);
  Settle();
  EXPECT_EQ(client.pings, 1);
  EXPECT_EQ(grpc.acks, 1);
}

TEST_F(StreamRelayTest, GoawayNamesTheClientsStream) {
  Begin();
  Open();
  grpc.session.Goaway(0x7fffffff, NGHTTP2_NO_ERROR);
  Settle();
  EXPECT_EQ(client.goaway, 0x7fffffff);
  grpc.session.Goaway(grpc.last_stream, NGHTTP2_NO_ERROR);
  Settle();
  EXPECT_EQ(client.goaway, 1);
  // The call that was accepted before still ends as usual.
  grpc.session.Respond(grpc.last_stream, RefusalHeaders(0, ""), true);
  Settle();
  EXPECT_EQ(FindHeader(client.first, "grpc-status"), "0");
}

TEST_F(StreamRelayTest, RefusedCallsNeverOpenAnUpstreamAndManyEndTheConnection) {
  for (int i = 0; i <= kRefusalsMax && !relay.Ended(); ++i) {
    Begin(/*ended=*/true);
    relay.Refuse(16, "no identity");
    Settle();
    EXPECT_EQ(FindHeader(client.first, "grpc-status"), "16");
  }
  EXPECT_TRUE(relay.flooded());
  EXPECT_FALSE(relay.opened());
  EXPECT_EQ(grpc.last_stream, 0);
}

TEST_F(StreamRelayTest, AStrangerOccupiesLittleWhilePhubdDoesNotAnswer) {
  client.to_send.Append(std::string(8 << 20, 'x'));
  for (int i = 0; i < 100; ++i) {
    HeaderList headers = Call("/a.B/C");
    headers.emplace_back("authorization", std::string(4000, 'x'));
    client.session.Request(headers, false);
    Settle();
  }
  EXPECT_EQ(judged.size(), 1u);
  EXPECT_LE(most_bytes, 256u << 10);
}

TEST_F(StreamRelayTest, FramesThatCostNothingAreLimited) {
  const std::uint8_t opaque[8] = {};
  Begin();
  Open();
  for (int i = 0; i < 2 * kCheapFrameBurst && !relay.Ended(); ++i) {
    client.session.Ping(opaque, false);
    Settle();
  }
  EXPECT_TRUE(relay.flooded());
}

TEST_F(StreamRelayTest, ClientsThatPingForLongAreNoFlood) {
  const std::uint8_t opaque[8] = {};
  Begin();
  Open();
  for (int i = 0; i < 5 * kCheapFrameBurst; ++i) {
    now += 10 * kMillisecond;
    client.session.Ping(opaque, false);
    Settle();
  }
  EXPECT_FALSE(relay.flooded());
}

std::string WindowUpdate() { return std::string("\0\0\4\x8\0\0\0\0\0\0\0\0\1", 13); }

TEST_F(StreamRelayTest, WindowUpdatesWithoutDataAreLimited) {
  Begin();
  Open();
  for (int i = 0; i < 2 * kCheapFrameBurst && !relay.Ended(); ++i)
    relay.ReceiveFromClient(WindowUpdate(), now);
  EXPECT_TRUE(relay.flooded());
}

TEST_F(StreamRelayTest, AClientMayUpdateItsWindowsForDataThatItReceives) {
  Begin();
  Open();
  grpc.session.Respond(grpc.last_stream, AnswerHeaders(), false);
  grpc.to_send.Append(std::string(16 << 20, 'x'));
  grpc.session.Resume(grpc.last_stream);
  Settle();
  ASSERT_EQ(client.received.size(), 16u << 20);
  for (int i = 0; i < 1.5 * kCheapFrameBurst; ++i) relay.ReceiveFromClient(WindowUpdate(), now);
  EXPECT_FALSE(relay.flooded());
}

TEST_F(StreamRelayTest, ACallWhoseRequestDoesNotArriveEnds) {
  client.to_send.Append(std::string("\0\0\0\1\0begin", 10));  // of 256 bytes
  Begin();
  Open();
  EXPECT_GE(relay.bytes(), kUnfinishedCallBytes);
  now += kRequestPauseMax - kSecond;
  relay.EndUnfinished(now);
  Settle();
  EXPECT_EQ(grpc.closed, 0);
  now += kSecond;
  relay.EndUnfinished(now);
  Settle();
  EXPECT_EQ(FindHeader(client.first, "grpc-status"), "4");
  EXPECT_EQ(client.closed, 1);
  EXPECT_EQ(grpc.closed, 1);
  EXPECT_EQ(relay.TakeUnfinishedEnded(), 1u);
  EXPECT_LT(relay.bytes(), 128u << 10);
  // The connection goes on.
  EXPECT_FALSE(relay.Ended());
}

TEST_F(StreamRelayTest, ARequestThatArrivesByteByByteHasTwoMinutes) {
  client.to_send.Append(std::string("\0\0\0\1\0", 5));
  Begin();
  Open();
  for (; now < kRequestTimeMax - kSecond; now += kSecond) {
    client.to_send.Append("x");
    client.session.Resume(1);
    Settle();
    relay.EndUnfinished(now);
    Settle();
  }
  EXPECT_EQ(client.closed, 0);
  now = kRequestTimeMax;
  relay.EndUnfinished(now);
  Settle();
  EXPECT_EQ(client.closed, 1);
}

TEST_F(StreamRelayTest, AStreamMayBeSilentAfterItsFirstMessage) {
  client.to_send.Append(std::string("\0\0\0\0\3abc", 8));
  Begin();
  Open();
  now += 3600 * kSecond;
  relay.EndUnfinished(now);
  Settle();
  EXPECT_EQ(client.closed, 0);
  EXPECT_EQ(grpc.closed, 0);
}

TEST_F(StreamRelayTest, ManyCallsWithoutARequestEndTheConnection) {
  Begin();
  Open();
  while (relay.TakeUnfinishedEnded() < 1000 && !relay.Ended()) {
    for (int i = 0; i < 10; ++i) Begin();
    now += kRequestPauseMax;
    relay.EndUnfinished(now);
    Settle();
  }
  EXPECT_TRUE(relay.flooded());
}

TEST_F(StreamRelayTest, HealthIsAnsweredWithoutPhubdAndAWatchSeesChanges) {
  client.to_send.Append(std::string(5, '\0'));
  client.ended = true;
  client.session.Request(Call("/grpc.health.v1.Health/Watch"), false);
  Settle();
  EXPECT_EQ(client.received, HealthMessage(HealthStatus::kServing));
  relay.SetServing(false);
  Settle();
  EXPECT_EQ(client.received,
            HealthMessage(HealthStatus::kServing) + HealthMessage(HealthStatus::kNotServing));
  client.received.clear();
  client.to_send.Append(std::string(5, '\0'));
  client.session.Request(Call("/grpc.health.v1.Health/Check"), false);
  Settle();
  EXPECT_EQ(client.received, HealthMessage(HealthStatus::kNotServing));
  EXPECT_EQ(FindHeader(client.trailers, "grpc-status"), "0");
  EXPECT_TRUE(judged.empty());
}

TEST_F(StreamRelayTest, TheEndOfTheUpstreamEndsCallsAndConnection) {
  Begin();
  Open();
  relay.UpstreamEnded();
  Settle();
  EXPECT_EQ(client.closed, 1);
  EXPECT_EQ(client.goaway, 1);
  EXPECT_TRUE(relay.Ended());
}

}  // namespace
}  // namespace phub::server
