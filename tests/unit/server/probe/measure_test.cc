// Both ends of a probe over a real connection, and one end with an invalid peer.
#include "server/probe/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/descriptor.h"

namespace phub::server::probe {
namespace {

using ::testing::HasSubstr;
using transport::TcpConnection;

constexpr Limits kShort = {.duration = 50 * kMillisecond, .bytes = 32 << 20, .echoes = 50};

std::pair<Descriptor, Descriptor> ConnectedSockets() {
  Descriptor listening(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof address;
  PHUB_CHECK(bind(listening.get(), any, bytes) == 0 && listen(listening.get(), 1) == 0 &&
             getsockname(listening.get(), any, &bytes) == 0);
  Descriptor dialled(socket(AF_INET, SOCK_STREAM, 0));
  PHUB_CHECK(connect(dialled.get(), any, bytes) == 0);
  return {std::move(dialled), Descriptor(accept(listening.get(), nullptr, nullptr))};
}

class ProbeTest : public ::testing::Test {
 protected:
  ProbeTest() {
    auto [one, other] = ConnectedSockets();
    measuring_ = std::make_unique<TcpConnection>(std::move(one), 1, transport::StreamLimits{});
    other_ = std::move(other);
  }
  // The other end answers as phubd does, then closes.
  void Answer(const Limits& limits = kShort) {
    thread_ = std::thread([this, limits] {
      TcpConnection lane(std::move(other_), 1, {});
      answered_ = AnswerProbe(lane, limits, clock_, stopping_);
    });
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  ~ProbeTest() override {
    stopping_ = true;
    Join();
  }
  void SendByOther(const std::vector<std::byte>& bytes) {
    ASSERT_EQ(send(other_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void SendByMeasuring(const Request& request) {
    std::array<std::byte, kRequestBytes> bytes;
    EncodeRequest(request, bytes);
    ASSERT_EQ(send(measuring_->socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  const SystemClock clock_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<TcpConnection> measuring_;
  Descriptor other_;
  std::thread thread_;
  absl::Status answered_;
};

TEST_F(ProbeTest, MeasuresBothWaysAndEnds) {
  Answer();
  const absl::StatusOr<Result> result = Measure(*measuring_, kShort, clock_, stopping_);
  Join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(answered_.ok()) << answered_;
  EXPECT_GT(result->round_trip_min, 0);
  EXPECT_LE(result->round_trip_min, result->round_trip);
  EXPECT_LE(result->round_trip, result->round_trip_median);
  EXPECT_LT(result->round_trip, 30 * kSecond);  // on a busy machine
  EXPECT_LE(result->echoes, kShort.echoes);
  for (const Way& way : {result->out, result->back}) {
    EXPECT_GT(way.duration, 0);
    EXPECT_GT(way.bytes_per_s, 1e6);
    EXPECT_GT(way.mean_bytes_per_s, 1e6);
    EXPECT_LE(way.bytes, kShort.bytes / 2);
  }
}

TEST_F(ProbeTest, TakesAboutAsLongAsItMay) {
  Answer();
  const TimeNs begun = clock_.Now();
  ASSERT_TRUE(Measure(*measuring_, kShort, clock_, stopping_).ok());
  EXPECT_LT(clock_.Now() - begun, kShort.duration + 30 * kSecond);  // a margin for a busy machine
}

TEST_F(ProbeTest, AnEndThatDiesIsNoticedAtOnce) {
  other_.Reset();
  const TimeNs begun = clock_.Now();
  const absl::StatusOr<Result> result = Measure(*measuring_, kShort, clock_, stopping_);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(result.status().ToString(), HasSubstr("gone"));
  EXPECT_LT(clock_.Now() - begun, 30 * kSecond);
}

TEST_F(ProbeTest, AnEndThatDiesAmidATransferIsNoticed) {
  thread_ = std::thread([this] {
    TcpConnection lane(std::move(other_), 1, {});
    // Some more than the 4 untimed echoes, then none.
    Limits few = kShort;
    few.bytes = kLimitsMin.bytes / 16;
    answered_ = AnswerProbe(lane, few, clock_, stopping_);
  });
  const absl::StatusOr<Result> result = Measure(*measuring_, kShort, clock_, stopping_);
  Join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(answered_.ToString(), HasSubstr("more bytes than it announced"));
}

TEST_F(ProbeTest, AnEndThatSaysNothingEndsTheProbeInTime) {
  Limits limits = kShort;
  limits.duration = kLimitsMin.duration;
  const TimeNs begun = clock_.Now();
  const absl::StatusOr<Result> result = Measure(*measuring_, limits, clock_, stopping_);
  EXPECT_THAT(result.status().ToString(), HasSubstr("did not answer in time"));
  EXPECT_LT(clock_.Now() - begun, kPatience + 2 * kSecond);
}

TEST_F(ProbeTest, StoppingEndsBothEnds) {
  std::thread stopper([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stopping_ = true;
  });
  const TimeNs begun = clock_.Now();
  const absl::StatusOr<Result> result = Measure(*measuring_, kShort, clock_, stopping_);
  EXPECT_THAT(result.status().ToString(), HasSubstr("shutting down"));
  Answer();
  Join();
  EXPECT_FALSE(answered_.ok());
  EXPECT_LT(clock_.Now() - begun, 2 * kSecond);
  stopper.join();
}

TEST_F(ProbeTest, GarbageIsNoReceiptAndNoRequest) {
  SendByOther(std::vector<std::byte>(kRequestBytes, std::byte{7}));
  const absl::StatusOr<Result> result = Measure(*measuring_, kShort, clock_, stopping_);
  EXPECT_THAT(result.status().ToString(), HasSubstr("receipt does not match"));
}

TEST_F(ProbeTest, WhoeverMeasuresGetsNoMoreThanItAskedFor) {
  SendByMeasuring({Request::Kind::kGive, kShort.bytes + 1});
  Answer();
  Join();
  EXPECT_THAT(answered_.ToString(), HasSubstr("more bytes than it announced"));
}

TEST_F(ProbeTest, EchoesAreCounted) {
  for (std::uint32_t i = 0; i < 10; ++i) SendByMeasuring({Request::Kind::kEcho, i});
  Limits few = kShort;
  few.echoes = 1;
  Answer(few);
  Join();
  EXPECT_THAT(answered_.ToString(), HasSubstr("more echoes than it announced"));
}

TEST(ProbeRequests, AreWhatTheyWereAndNothingElseIs) {
  std::array<std::byte, kRequestBytes> bytes;
  for (const Request& request :
       {Request{Request::Kind::kEcho, 0}, Request{Request::Kind::kTake, 1},
        Request{Request::Kind::kGive, UINT64_MAX}, Request{Request::Kind::kEnd, 0}}) {
    EncodeRequest(request, bytes);
    EXPECT_EQ(DecodeRequest(bytes), request);
  }
  for (std::size_t at : {0u, 3u, 5u, 16u, 63u}) {  // magic, kind, and bytes that must be zero
    auto broken = bytes;
    broken[at] ^= std::byte{0x55};
    EXPECT_FALSE(DecodeRequest(broken)) << at;
  }
  auto none = bytes;
  none[4] = std::byte{0};
  EXPECT_FALSE(DecodeRequest(none));
  none[4] = std::byte{5};
  EXPECT_FALSE(DecodeRequest(none));
}

TEST(ProbeLimits, AreTheDefaultsOrWhatIsGiven) {
  const absl::StatusOr<Limits> defaults = MakeLimits(0, 0, 0);
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->duration, Limits().duration);
  const absl::StatusOr<Limits> given = MakeLimits(kSecond, 2 << 20, 7);
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->duration, kSecond);
  EXPECT_EQ(given->bytes, 2u << 20);
  EXPECT_EQ(given->echoes, 7u);
  for (const auto& wrong :
       {MakeLimits(-1, 0, 0), MakeLimits(1, 0, 0), MakeLimits(11 * kSecond, 0, 0),
        MakeLimits(0, 1, 0), MakeLimits(0, UINT64_MAX, 0), MakeLimits(0, 0, 10'001)}) {
    EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(wrong.status().ToString(), HasSubstr("it must be from"));
  }
}

}  // namespace
}  // namespace phub::server::probe
