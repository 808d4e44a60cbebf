#include "common/aggregation/nack_timers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace phub::aggregation {
namespace {

using Sum = NackTimers::Sum;

class NackTimersTest : public ::testing::Test {
 protected:
  std::vector<std::uint64_t> Due(TimeNs now) {
    std::vector<std::uint64_t> asked;
    timers_.Due(now, [&](Position position) { asked.push_back(position.value); });
    return asked;
  }
  void Assign(std::uint64_t first, std::uint64_t last, TimeNs now) {
    for (std::uint64_t each = first; each <= last; ++each) timers_.Assigned(Position{each}, now);
  }
  void Arrive(std::uint64_t position, std::uint32_t sums, TimeNs now) {
    for (std::uint32_t i = 0; i < sums; ++i) timers_.Arrived(Position{position}, Sum::kOther, now);
  }
  void ArriveOfLastBlock(std::uint64_t position, TimeNs now) {
    timers_.Arrived(Position{position}, Sum::kOfLastBlock, now);
  }
  void Finish(std::uint64_t position, TimeNs now) {
    timers_.Arrived(Position{position}, Sum::kLast, now);
  }

  static constexpr DurationNs kWait = NackTimers::kWaitFirst;
  using Positions = std::vector<std::uint64_t>;
  NackTimers timers_{{.positions = 4, .blocks = 10}};
};

TEST_F(NackTimersTest, SumsOfLaterPositionsMeanThatEarlierOnesAreLost) {
  Assign(0, 3, 1);
  Arrive(1, 2, 1);
  EXPECT_EQ(Due(1), Positions{});
  Arrive(0, 5, 1);
  EXPECT_EQ(Due(1), Positions{}) << "its own sums say nothing";
  Arrive(2, 1, 1);
  EXPECT_LE(timers_.deadline(), 1);
  EXPECT_EQ(Due(1), Positions{0}) << "of any later positions, three in sum";
  EXPECT_EQ(Due(1), Positions{});
  Arrive(2, 2, 1);
  EXPECT_EQ(Due(1), Positions{1}) << "after the question only later positions count";
}

TEST_F(NackTimersTest, TheLastBlockMeansThatOthersAreLost) {
  Assign(0, 1, 1);
  ArriveOfLastBlock(0, 1);
  EXPECT_EQ(Due(1), Positions{0});
  ArriveOfLastBlock(0, 2);
  EXPECT_EQ(Due(2), Positions{}) << "it was asked for: sums have no order any more";
}

TEST_F(NackTimersTest, AfterAQuestionOnlyPositionsCountThatWereAssignedSince) {
  Assign(0, 3, 1);
  Finish(1, 1);
  Arrive(2, 3, 1);
  EXPECT_EQ(Due(1), Positions{0});
  Arrive(2, 3, 1);
  Finish(2, 1);
  Arrive(3, 3, 1);
  EXPECT_EQ(Due(1), Positions{}) << "what was asked for may be on its way";
  Assign(5, 5, 1);
  Arrive(5, 3, 1);
  EXPECT_EQ(Due(1), (Positions{0, 3}));
}

TEST_F(NackTimersTest, SilenceMakesItAskForTheOldestPosition) {
  EXPECT_EQ(timers_.deadline(), NackTimers::kNever);
  Assign(0, 1, 0);
  EXPECT_EQ(timers_.deadline(), kWait);
  Arrive(1, 2, kWait / 2);
  EXPECT_EQ(Due(kWait), Positions{}) << "a sum has arrived meanwhile";
  EXPECT_EQ(Due(kWait / 2 + kWait), Positions{0});
  Finish(0, 2 * kWait);
  EXPECT_EQ(Due(3 * kWait - 1), Positions{});
  EXPECT_EQ(Due(3 * kWait), Positions{1});
  Finish(1, 4 * kWait);
  EXPECT_EQ(timers_.deadline(), NackTimers::kNever);
}

TEST_F(NackTimersTest, APositionIsAskedForAgainIfNothingOfItArrives) {
  Assign(0, 1, 1);
  ArriveOfLastBlock(0, 1);
  EXPECT_EQ(Due(1), Positions{0});
  for (TimeNs now = 1; now < 1 + kWait; now += kMillisecond) {
    Arrive(1, 1, now);
    EXPECT_EQ(Due(now), Positions{}) << now;
  }
  Arrive(1, 1, 1 + kWait);
  EXPECT_EQ(Due(1 + kWait), Positions{0});
  Arrive(1, 1, 3 * kWait);
  EXPECT_EQ(Due(3 * kWait), Positions{}) << "it waits twice as long";
  Arrive(1, 1, 1 + 3 * kWait);
  EXPECT_EQ(Due(1 + 3 * kWait), Positions{0});
  Arrive(0, 1, 4 * kWait);
  Arrive(1, 1, 5 * kWait);
  EXPECT_EQ(Due(5 * kWait), Positions{0});
  Arrive(1, 1, 6 * kWait);
  EXPECT_EQ(Due(6 * kWait), Positions{0}) << "a sum ends the doubling";
}

TEST_F(NackTimersTest, TheWaitIsLimited) {
  Assign(0, 0, 0);
  TimeNs now = 0;
  for (int i = 0; i < 70; ++i) {
    now = timers_.deadline();
    EXPECT_EQ(Due(now), Positions{0});
  }
  EXPECT_EQ(timers_.deadline(), now + NackTimers::kWaitMax);
}

TEST_F(NackTimersTest, SilenceIsMeasuredByPositionsThatWereNotAskedFor) {
  TimeNs now = 0;
  for (std::uint64_t i = 0; i < 50; ++i) {
    Assign(i, i, now);
    Finish(i, now += kMillisecond);
  }
  EXPECT_EQ(timers_.SilenceWait(), NackTimers::kWaitMin);
  for (std::uint64_t i = 50; i < 100; ++i) {
    Assign(i, i, now);
    Finish(i, now += 300 * kMillisecond);
  }
  const DurationNs measured = timers_.SilenceWait();
  EXPECT_GE(measured, 300 * kMillisecond);
  for (std::uint64_t i = 100; i < 150; ++i) {
    Assign(i, i, now);
    now = timers_.deadline();
    EXPECT_EQ(Due(now), Positions{i});
    Finish(i, ++now);
  }
  EXPECT_EQ(timers_.SilenceWait(), measured) << "Karn's rule";
}

TEST_F(NackTimersTest, AnswersAreMeasuredFromTheFirstQuestion) {
  TimeNs now = 1;
  for (std::uint64_t i = 0; i < 50; ++i) {
    Assign(i, i, now);
    ArriveOfLastBlock(i, now);
    EXPECT_EQ(Due(now), Positions{i});
    Finish(i, now += 5 * kMillisecond);
  }
  const DurationNs measured = timers_.AnswerWait(1);
  EXPECT_GE(measured, 5 * kMillisecond);
  EXPECT_LT(measured, 6 * kMillisecond);
  EXPECT_EQ(timers_.AnswerWait(3), 4 * measured);
  for (std::uint64_t i = 50; i < 100; ++i) {
    Assign(i, i, now);
    ArriveOfLastBlock(i, now);
    EXPECT_EQ(Due(now), Positions{i});
    now = timers_.deadline();
    EXPECT_EQ(Due(now), Positions{i});
    Finish(i, now += kMillisecond);
  }
  EXPECT_EQ(timers_.AnswerWait(1), measured) << "Karn's rule";
}

TEST_F(NackTimersTest, ANewStreamBeginsWithPositionZero) {
  Assign(0, 3, 1);
  Arrive(3, 5, 1);
  timers_.Clear();
  EXPECT_EQ(timers_.deadline(), NackTimers::kNever);
  Assign(0, 1, 1);
  Arrive(1, 2, 1);
  EXPECT_EQ(Due(1), Positions{});
  Arrive(1, 1, 1);
  EXPECT_EQ(Due(1), Positions{0});
}

}  // namespace
}  // namespace phub::aggregation
