// The metrics port against real sockets, with a clock that tests set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "common/http/metrics_server.h"
#include "server/control/counters.h"
#include "server/metrics/exposition.h"
#include "tests/support/http_client.h"
#include "tests/support/prometheus_text.h"

namespace phub::server {
namespace {

using http::MetricsServer;
using phub::testing::AskHttp;
using phub::testing::ConnectTo;
using phub::testing::GetMetrics;
using phub::testing::HttpAnswer;
using phub::testing::ReadPrometheusText;
using phub::testing::ReadToEnd;
using phub::testing::SendText;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DurationNs kPatience = 60 * kSecond;  // much longer than any step takes

class SharedClock final : public Clock {
 public:
  TimeNs Now() const override { return now.load(); }
  std::atomic<TimeNs> now{kSecond};
};

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    auto created = MetricsServer::Create(
        "phubd", "127.0.0.1", 0,
        [this](const http::HttpCounts& counts) {
          return WriteExposition(Collect(), ReadProcessSample(), counts);
        },
        [this](MetricsServer::Question question) { return HealthOf(question); }, clock_);
    EXPECT_TRUE(created.ok()) << created.status();
    server_ = std::move(*created);
  }
  MetricsSample Collect() {
    ++collected_;
    MetricsSample sample;
    sample.version = std::string(version_bytes_, 'v');
    sample.cores.resize(1);
    sample.control_counters.resize(kControlCounterCount);
    return sample;
  }
  absl::Status HealthOf(MetricsServer::Question question) const {
    return question == MetricsServer::Question::kAlive || ready_
               ? absl::OkStatus()
               : absl::UnavailableError("phubd is draining");
  }
  std::uint16_t port() const { return server_->port(); }

  SharedClock clock_;
  std::atomic<int> collected_{0};
  std::atomic<std::size_t> version_bytes_{5};
  std::atomic<bool> ready_{true};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(HttpServerTest, AnswersWithTheTextAndEndsTheConnection) {
  const HttpAnswer answer = GetMetrics(port());
  EXPECT_EQ(answer.code, 200);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  const auto read = ReadPrometheusText(answer.body);
  EXPECT_THAT(read.problems, IsEmpty());
  EXPECT_EQ(read.Sum("phub_build_info", {{"version", "vvvvv"}}), 1);
}

TEST_F(HttpServerTest, TellsSupervisorsItsHealth) {
  const auto ask = [&](const std::string& path) {
    return AskHttp(port(), "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n", kPatience);
  };
  EXPECT_EQ(ask("/healthz").code, 200);
  EXPECT_EQ(ask("/readyz").code, 200);
  EXPECT_EQ(ask("/readyz").body, "ok\n");
  ready_ = false;
  EXPECT_EQ(ask("/healthz").code, 200);
  EXPECT_EQ(ask("/readyz").code, 503);
  EXPECT_EQ(ask("/readyz").body, "phubd is draining\n");
  EXPECT_EQ(collected_, 0);
}

TEST_F(HttpServerTest, RefusesWhatItDoesNotKnow) {
  const auto ask = [&](std::string_view request) { return AskHttp(port(), request, kPatience); };
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").code, 404);
  EXPECT_EQ(ask("GET /metrics/../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n").code, 404);
  const HttpAnswer post = ask("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_EQ(post.code, 405);
  EXPECT_THAT(post.head, HasSubstr("Allow: GET, HEAD"));
  EXPECT_EQ(ask("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").body, "");
  // A header that exceeds a connection's buffer, and bytes that are not HTTP.
  EXPECT_NE(ask("GET /metrics HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n").code, 200);
  ask(std::string(5000, '\0'));
  EXPECT_EQ(GetMetrics(port()).code, 200);
}

TEST_F(HttpServerTest, TheTextIsMadeAnewOnlyOnceItIsOld) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(GetMetrics(port()).code, 200);
  EXPECT_EQ(collected_, 1);
  clock_.now += MetricsServer::kTextAgeMax;
  const HttpAnswer answer = GetMetrics(port());
  EXPECT_EQ(collected_, 2);
  EXPECT_EQ(ReadPrometheusText(answer.body).Sum("phub_metrics_answers_total", {{"code", "200"}}),
            20);
}

TEST_F(HttpServerTest, WhoeverAsksTooSlowlyIsCutAndOthersAreServed) {
  // Every place is taken: half of the clients are silent, half are in the middle of a request.
  std::vector<Descriptor> slow;
  for (std::uint32_t i = 0; i < MetricsServer::kConnectionsMax; ++i) {
    slow.push_back(ConnectTo(port()));
    ASSERT_TRUE(slow.back());
    if (i % 2 == 0) {
      EXPECT_TRUE(SendText(slow.back(), "GET /metrics HT"));
    }
  }
  // One more client waits and is not answered yet.
  const Descriptor patient = ConnectTo(port());
  ASSERT_TRUE(SendText(patient, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(ReadToEnd(patient, 300 * kMillisecond), "");
  clock_.now += MetricsServer::kRequestTimeout;
  EXPECT_THAT(ReadToEnd(patient, kPatience), HasSubstr("200 OK"));
  for (const Descriptor& each : slow) {
    bool closed = false;
    ReadToEnd(each, kPatience, &closed);
    EXPECT_TRUE(closed);
  }
  clock_.now += MetricsServer::kTextAgeMax;
  const auto read = ReadPrometheusText(GetMetrics(port()).body);
  EXPECT_EQ(read.Sum("phub_metrics_connections_cut_total"), MetricsServer::kConnectionsMax);
}

TEST_F(HttpServerTest, WhoeverDoesNotTakeTheAnswerIsCut) {
  version_bytes_ = 32 << 20;  // more than sockets can buffer
  const Descriptor stuck = ConnectTo(port());
  ASSERT_TRUE(SendText(stuck, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"));
  while (collected_ == 0) ReadToEnd({}, kMillisecond);
  version_bytes_ = 5;
  clock_.now += MetricsServer::kAnswerTimeout;
  bool cut = false;
  for (int i = 0; i < 100 && !cut; ++i) {
    clock_.now += MetricsServer::kTextAgeMax;
    ReadToEnd({}, 20 * kMillisecond);
    cut =
        ReadPrometheusText(GetMetrics(port()).body).Sum("phub_metrics_connections_cut_total") == 1;
  }
  EXPECT_TRUE(cut);
}

TEST_F(HttpServerTest, ConnectionsThatComeAndGoLeaveNothing) {
  // The library may not notice that a client left in the middle of a request. Then the deadline
  // closes the connection.
  for (int i = 0; i < 200; ++i) {
    clock_.now += 100 * kMillisecond;
    const Descriptor socket = ConnectTo(port());
    if (i % 3 == 1) SendText(socket, "GET");
    if (i % 3 == 2) SendText(socket, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  clock_.now += MetricsServer::kRequestTimeout;
  EXPECT_EQ(GetMetrics(port()).code, 200);
}

TEST_F(HttpServerTest, ItCanBeStoppedWhileClientsHang) {
  const Descriptor hanging = ConnectTo(port());
  SendText(hanging, "GET /met");
  server_.reset();
  bool closed = false;
  ReadToEnd(hanging, kPatience, &closed);
  EXPECT_TRUE(closed);
}

TEST_F(HttpServerTest, APortInUseIsSaidSo) {
  const auto second = MetricsServer::Create(
      "phubd", "127.0.0.1", port(), [](const http::HttpCounts&) { return std::string(); },
      [this](MetricsServer::Question question) { return HealthOf(question); }, clock_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("cannot listen on 127.0.0.1:"));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("Address already in use"));
}

}  // namespace
}  // namespace phub::server
