#include "common/aggregation/probe_timers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace phub::aggregation {
namespace {

using Asked = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

class ProbeTimersTest : public ::testing::Test {
 protected:
  Asked Due(TimeNs now) {
    Asked asked;
    timers_.Due(
        now, [&](std::uint32_t place, std::uint32_t block) { asked.emplace_back(place, block); });
    return asked;
  }
  ProbeTimers timers_{Geometry{.positions = 2, .blocks = 3}};
};

constexpr DurationNs kFirst = ProbeTimers::kTimeoutFirst;

TEST_F(ProbeTimersTest, AsksAboutWhatWasSentAfterTheTimeoutAndThenMoreAndMoreRarely) {
  EXPECT_EQ(timers_.deadline(), ProbeTimers::kNever);
  timers_.Sent(1, 2, 100);
  EXPECT_EQ(timers_.deadline(), 100 + kFirst);
  EXPECT_EQ(Due(99 + kFirst), Asked{});
  EXPECT_EQ(Due(100 + kFirst), (Asked{{1, 2}}));
  TimeNs now = 100 + kFirst;
  DurationNs last = kFirst;
  for (int i = 0; i < 12; ++i) {
    const DurationNs wait = timers_.deadline() - now;
    EXPECT_EQ(wait, std::min(2 * last, ProbeTimers::kTimeoutMax));
    last = wait;
    now = timers_.deadline();
    EXPECT_EQ(Due(now), (Asked{{1, 2}}));
  }
}

TEST_F(ProbeTimersTest, APayloadThatIsSentAgainBeginsAtTheTimeout) {
  timers_.Sent(0, 0, 0);
  Due(kFirst);
  Due(10 * kFirst);
  timers_.Sent(0, 0, 11 * kFirst);
  EXPECT_EQ(Due(12 * kFirst), (Asked{{0, 0}}));
}

TEST_F(ProbeTimersTest, AsksAtOnceAboutAPositionThatALaterOneHasOvertaken) {
  timers_.Sent(0, 0, 0);
  timers_.Sent(0, 2, 0);
  timers_.Sent(1, 0, 5);
  timers_.Overtaken(0, 10);
  EXPECT_EQ(timers_.deadline(), 10);
  EXPECT_EQ(Due(10), (Asked{{0, 0}, {0, 2}}));
  // Expect: once only, since each answer may lead to a payload.
  timers_.Sent(0, 2, 11);
  timers_.Overtaken(0, 12);
  EXPECT_EQ(Due(12), Asked{});
  EXPECT_EQ(Due(10 + 2 * kFirst), (Asked{{0, 0}, {0, 2}, {1, 0}}));
}

TEST_F(ProbeTimersTest, AClosedPlaceIsSilent) {
  timers_.Sent(0, 0, 0);
  timers_.Sent(1, 0, 0);
  timers_.Close(0);
  EXPECT_EQ(Due(kFirst), (Asked{{1, 0}}));
}

TEST_F(ProbeTimersTest, OnlyTheAnswerToTheFirstQuestionIsMeasured) {
  timers_.Sent(0, 0, 0);
  Due(kFirst);
  Due(3 * kFirst);  // the second question
  timers_.Answered(0, 0, 3 * kFirst + 1);
  EXPECT_EQ(timers_.timeout(), kFirst) << "nobody knows to which question this is the answer";
  timers_.Sent(0, 1, 0);
  Due(4 * kFirst);
  timers_.Answered(0, 1, 4 * kFirst + kMillisecond);
  EXPECT_EQ(timers_.timeout(), 3 * kMillisecond) << "1 ms and four times the deviation";
  timers_.Answered(0, 1, 9 * kFirst);
  EXPECT_EQ(timers_.timeout(), 3 * kMillisecond) << "a duplicate of an answer";
}

TEST_F(ProbeTimersTest, TheTimeOfAPositionCountsIfItIsLongerThanThatOfAQuestion) {
  timers_.Sent(0, 0, 0);
  Due(kFirst);
  timers_.Answered(0, 0, kFirst + kMillisecond);
  EXPECT_EQ(timers_.timeout(), 3 * kMillisecond);
  timers_.Sent(1, 0, 100);
  timers_.Sent(1, 1, 200);
  timers_.Taken(1, 100 + 50 * kMillisecond);
  EXPECT_EQ(timers_.timeout(), 150 * kMillisecond);
  timers_.Close(1);
  // Expect: a payload that was sent again says nothing, and neither does a place without payload.
  timers_.Sent(1, 0, kSecond);
  timers_.Sent(1, 0, 2 * kSecond);
  timers_.Taken(1, 3 * kSecond);
  timers_.Close(1);
  timers_.Taken(1, 4 * kSecond);
  EXPECT_EQ(timers_.timeout(), 150 * kMillisecond);
}

TEST_F(ProbeTimersTest, APositionThatAQuestionMayHaveCompletedSaysNothing) {
  timers_.Sent(0, 0, 0);
  const TimeNs asked = timers_.deadline();
  Due(asked);
  timers_.Answered(0, 0, asked + 10 * kMillisecond);
  const DurationNs before = timers_.timeout();
  timers_.Close(0);
  const auto take = [&](TimeNs sent, DurationNs after_the_question) {
    timers_.Sent(0, 0, sent);
    Due(sent + kSecond);
    timers_.Taken(0, sent + kSecond + after_the_question);
    timers_.Close(0);
  };
  take(2 * kSecond, 10 * kMillisecond);
  EXPECT_EQ(timers_.timeout(), before);
  // Expect: sooner than any answer came, so it was on its way when the question was asked.
  take(4 * kSecond, 9 * kMillisecond);
  EXPECT_EQ(timers_.timeout(), ProbeTimers::kTimeoutMax);
}

TEST_F(ProbeTimersTest, TheTimeoutHasLimits) {
  timers_.Sent(0, 0, 0);
  Due(kFirst);
  timers_.Answered(0, 0, kFirst + 1);
  EXPECT_EQ(timers_.timeout(), ProbeTimers::kTimeoutMin);
  timers_.Sent(0, 1, 0);
  Due(kFirst);
  timers_.Answered(0, 1, kFirst + 100 * kSecond);
  EXPECT_EQ(timers_.timeout(), ProbeTimers::kTimeoutMax);
}

}  // namespace
}  // namespace phub::aggregation
