#include "common/transport/stream/linger.h"

#include <gtest/gtest.h>

namespace phub::transport {
namespace {

constexpr std::size_t kBytes = 256 * 1024;
constexpr std::size_t kPiece = 64 * 1024;
constexpr DurationNs kPieceTime = 200 * kMicrosecond;  // a piece at 2.6 Gbit/s

// `count` pieces, one per `every`; the owner asks after each. Returns the last answer.
DurationNs Flow(Linger& linger, TimeNs& now, int count, DurationNs every, bool inside = true) {
  DurationNs answer = 0;
  for (int i = 0; i < count; ++i) {
    now += every;
    linger.Received(kPiece, now);
    answer = linger.Take(now, inside);
  }
  return answer;
}

TEST(Linger, WaitsForItsBytesAtTheRateOfTheFlow) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  const DurationNs wait = Flow(linger, now, 40, kPieceTime);
  EXPECT_NEAR(static_cast<double>(wait), 4.0 * kPieceTime, 0.1 * kPieceTime);
}

TEST(Linger, NotBeforeAFlowIsLong) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  EXPECT_EQ(Flow(linger, now, 15, kPieceTime), 0);
  EXPECT_GT(Flow(linger, now, 1, kPieceTime), 0);
}

TEST(Linger, NothingToComeEndsAFlow) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  EXPECT_GT(Flow(linger, now, 40, kPieceTime), 0);
  EXPECT_EQ(Flow(linger, now, 1, kPieceTime, false), 0);
  EXPECT_EQ(Flow(linger, now, 15, kPieceTime), 0);
}

TEST(Linger, OnceForWhatCame) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  EXPECT_GT(Flow(linger, now, 40, kPieceTime), 0);
  EXPECT_EQ(linger.Take(now + kPieceTime, true), 0);
}

TEST(Linger, FastFlowsAreNotWaitedFor) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  EXPECT_EQ(Flow(linger, now, 400, 10 * kMicrosecond), 0);
}

TEST(Linger, SlowFlowsForFourMillisecondsAtMost) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  EXPECT_EQ(Flow(linger, now, 40, 5 * kMillisecond), 4 * kMillisecond);
}

TEST(Linger, FollowsARateThatChanges) {
  Linger linger(kBytes);
  TimeNs now = kSecond;
  Flow(linger, now, 400, kPieceTime);
  const DurationNs wait = Flow(linger, now, 400, kPieceTime / 4);
  EXPECT_NEAR(static_cast<double>(wait), kPieceTime, 0.1 * kPieceTime);
}

TEST(Linger, NeverIfToldSo) {
  Linger linger(0);
  TimeNs now = kSecond;
  EXPECT_EQ(Flow(linger, now, 400, kPieceTime), 0);
}

}  // namespace
}  // namespace phub::transport
