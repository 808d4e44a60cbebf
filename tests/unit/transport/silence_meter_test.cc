// Silence in virtual time: what counts, and what is forgiven.
#include "common/transport/silence_meter.h"

#include <gtest/gtest.h>

namespace phub::transport {
namespace {

constexpr DurationNs kTimeout = 1600 * kMillisecond;
constexpr DurationNs kStep = kTimeout / 16;

// The owner of one lane, which looks whenever it is due.
class Observer {
 public:
  Observer() { meter_.Begin(activity_); }

  // Runs the owner for that long.
  void Run(DurationNs duration) {
    for (const TimeNs end = now_ + duration; now_ < end;) {
      now_ = std::min(end, std::max(now_, timer_.next()));
      if (timer_.IsDue(now_)) meter_.Look(activity_, timer_.Take(now_));
    }
  }
  // The owner does not run for that long.
  void Pause(DurationNs duration) { now_ += duration; }
  void Receive() { ++activity_.received; }
  void SetReadAll(bool read_all) { activity_.read_all = read_all; }
  DurationNs silence() const { return meter_.silence(); }

 private:
  TimeNs now_ = 7 * kSecond;
  Activity activity_{.received = 0, .read_all = true};
  SilenceMeter meter_;
  LookTimer timer_{kTimeout};
};

TEST(SilenceMeter, CountsTheTimeWithoutAnything) {
  Observer observer;
  observer.Run(kTimeout);
  EXPECT_GE(observer.silence(), kTimeout - 2 * kStep);
  EXPECT_LE(observer.silence(), kTimeout);
}

TEST(SilenceMeter, APeerThatNeverSendsAnythingIsSilentFromTheBeginning) {
  Observer observer;
  observer.Run(kTimeout + 2 * kStep);
  EXPECT_GE(observer.silence(), kTimeout);
}

TEST(SilenceMeter, EveryByteIsASignOfLife) {
  Observer observer;
  for (int i = 0; i < 20; ++i) {
    observer.Run(kTimeout / 4);
    observer.Receive();
  }
  EXPECT_LE(observer.silence(), kTimeout / 4);
}

TEST(SilenceMeter, ThePauseOfTheObserverIsForgiven) {
  Observer observer;
  observer.Run(kTimeout / 2);
  const DurationNs before = observer.silence();
  observer.Pause(100 * kTimeout);
  observer.Run(kStep);
  EXPECT_LE(observer.silence(), before + kTimeout / 8 + kStep);
}

TEST(SilenceMeter, TimeInWhichTheLaneIsNotReadDoesNotCount) {
  Observer observer;
  observer.Run(kTimeout / 2);
  const DurationNs before = observer.silence();
  observer.SetReadAll(false);  // held, starved, or bytes are left
  observer.Run(10 * kTimeout);
  EXPECT_LE(observer.silence(), before + kStep);
  observer.SetReadAll(true);
  observer.Run(kTimeout);
  EXPECT_GE(observer.silence(), kTimeout);
}

TEST(LookTimer, NeverLooksWithoutATimeout) {
  LookTimer timer(0);
  EXPECT_FALSE(timer.IsDue(std::numeric_limits<TimeNs>::max() - 1));
  EXPECT_FALSE(timer.TakeKeepAlive(kSecond));
}

TEST(LookTimer, SendsEightKeepAlivesPerTimeout) {
  LookTimer timer(kTimeout);
  int sent = 0;
  for (TimeNs now = kSecond; now < kSecond + 10 * kTimeout; now = timer.next()) {
    timer.Take(now);
    sent += timer.TakeKeepAlive(now);
  }
  EXPECT_EQ(sent, 80);
}

SilenceJudge JudgeOf(std::initializer_list<DurationNs> silences) {
  SilenceJudge judge;
  std::uint32_t lane = 0;
  for (const DurationNs silence : silences) judge.Add(lane++, silence);
  return judge;
}

TEST(SilenceJudge, AProcessIsSilentIfAllItsLanesAre) {
  using Verdict = SilenceJudge::Verdict;
  EXPECT_EQ(JudgeOf({}).Judge(kTimeout), Verdict::kAlive);
  EXPECT_EQ(JudgeOf({kTimeout - 1}).Judge(kTimeout), Verdict::kAlive);
  EXPECT_EQ(JudgeOf({kTimeout}).Judge(kTimeout), Verdict::kAllSilent);
  EXPECT_EQ(JudgeOf({kTimeout, kTimeout + 5}).Judge(kTimeout), Verdict::kAllSilent);
}

TEST(SilenceJudge, WaitsALittleForLanesThatFallSilentTogether) {
  using Verdict = SilenceJudge::Verdict;
  EXPECT_EQ(JudgeOf({kTimeout, kTimeout - kStep}).Judge(kTimeout), Verdict::kAlive);
  EXPECT_EQ(JudgeOf({kTimeout + kTimeout / 4, kTimeout - 1}).Judge(kTimeout), Verdict::kLaneSilent);
}

TEST(SilenceJudge, NamesTheLaneThatIsSilentWhileOthersWork) {
  const SilenceJudge judge = JudgeOf({0, kTimeout, kStep});
  EXPECT_EQ(judge.Judge(kTimeout), SilenceJudge::Verdict::kLaneSilent);
  EXPECT_EQ(judge.most_silent(), 1u);
  EXPECT_EQ(judge.most(), kTimeout);
}

}  // namespace
}  // namespace phub::transport
