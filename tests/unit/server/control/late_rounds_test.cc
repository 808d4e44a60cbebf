// Rounds that take much longer than usual: the ranks that have pushed are notified which rank is
// late.
#include "server/control/ranks/late_rounds.h"

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

constexpr DurationNs kUsual = 500 * kMillisecond;
constexpr DurationNs kLate = LateRounds::kTimesUsual * kUsual;

class LateRoundsTest : public ControlTest {
 protected:
  void Begin(DurationNs usual = kUsual) {
    sessions_ = EnterAll(3);
    AddKeysOfAll(sessions_, {Key("w", 10)});
    shard_ = cores[0]->Executed(Command::Kind::kAddJob)[0].shard;
    CompleteIteration(usual, LateRounds::kIterationsMin);
  }
  void CompleteIteration(DurationNs usual, std::uint64_t timed) {
    ShardMetrics& metrics = shard_->metrics;
    metrics.iteration.Set(metrics.iteration.Get() + 1);
    metrics.iteration_ns.Set(static_cast<std::uint64_t>(usual));
    metrics.iteration_at.Set(static_cast<std::uint64_t>(clock.now));
    metrics.iterations_timed.Set(timed);
  }
  // From now on a round waits for rank 2.
  void WaitForRank2() {
    cores[0]->fill_stalls = [since = clock.now](StallReport& report) {
      report.count = 1;
      StallReport::Entry& entry = report.entries[0];
      entry.key = KeyIndex{0};
      entry.iteration = Iteration{8};
      entry.since = since;
      entry.chunks_waiting = 1;
      entry.missing[0] = 1u << 2;
    };
  }
  // Time passes while all ranks send heartbeats.
  void BeatFor(DurationNs duration) {
    for (const TimeNs end = clock.now + duration; clock.now < end;) {
      for (const std::string& session : sessions_) Heartbeat(session);
      Advance(std::min(kSecond / 4, end - clock.now));
    }
  }
  std::vector<v1::RoundLate> Notices(std::size_t rank) {
    std::vector<v1::RoundLate> notices;
    for (const v1::SessionEvent& event : sinks[sessions_[rank]]->events) {
      if (event.has_late()) notices.push_back(event.late());
    }
    return notices;
  }
  std::size_t Queries() { return cores[0]->Executed(Command::Kind::kReportStalls).size(); }

  std::vector<std::string> sessions_;
  JobShard* shard_ = nullptr;
};

TEST_F(LateRoundsTest, NameTheRankThatTheOthersWaitFor) {
  Begin();
  WaitForRank2();
  BeatFor(kLate - kSecond / 4);
  EXPECT_TRUE(Notices(0).empty());
  BeatFor(kSecond / 2);
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_EQ(Notices(rank).size(), 1u);
    const v1::RoundLate late = Notices(rank)[0];
    EXPECT_EQ(late.key(), "w");
    EXPECT_EQ(late.iteration(), 8u);
    EXPECT_EQ(late.usual_ns(), kUsual);
    EXPECT_GE(late.waiting_ns(), kLate);
    EXPECT_EQ(late.late_count(), 1u);
    ASSERT_EQ(late.ranks_size(), 1);
    EXPECT_EQ(late.ranks(0).rank(), 2u);
    EXPECT_EQ(late.ranks(0).host(), "node2");
  }
  EXPECT_TRUE(Notices(2).empty());
  BeatFor(LateRounds::kNoticeInterval - kSecond);
  EXPECT_EQ(Notices(0).size(), 1u);
  BeatFor(2 * kSecond);
  EXPECT_EQ(Notices(0).size(), 2u);
}

TEST_F(LateRoundsTest, AreCountedFromTheirFirstGradient) {
  Begin();
  BeatFor(kLate - kSecond);  // all ranks compute
  WaitForRank2();
  BeatFor(kLate - kSecond / 2);
  EXPECT_TRUE(Notices(0).empty());
  BeatFor(kSecond);
  EXPECT_EQ(Notices(0).size(), 1u);
}

TEST_F(LateRoundsTest, OfFastJobsGetNoNoticeBeforeTheFloor) {
  Begin(kMillisecond);
  WaitForRank2();
  BeatFor(LateRounds::kLateAtLeast - kSecond / 4);
  EXPECT_TRUE(Notices(0).empty());
  BeatFor(kSecond / 2);
  EXPECT_EQ(Notices(0).size(), 1u);
}

TEST_F(LateRoundsTest, GetNoNoticeInAJobThatHasJustStarted) {
  Begin();
  CompleteIteration(kMillisecond, LateRounds::kIterationsMin - 1);
  WaitForRank2();
  BeatFor(LateRounds::kNoticeInterval);
  EXPECT_TRUE(Notices(0).empty());
  EXPECT_EQ(Queries(), 0u);
}

TEST_F(LateRoundsTest, DoNotExistWhileAllRanksDoSomethingElse) {
  Begin();
  BeatFor(2 * LateRounds::kNoticeInterval);
  EXPECT_TRUE(Notices(0).empty());
  EXPECT_LE(Queries(), 1 + 2 * LateRounds::kNoticeInterval / LateRounds::kIdleInterval);
}

TEST_F(LateRoundsTest, CostOneQueryAtATimeIfACoreLoopDoesNotAnswer) {
  Begin();
  cores[0]->silent_on_stalls = true;
  BeatFor(2 * LateRounds::kNoticeInterval);
  EXPECT_EQ(Queries(), 1u);
  EXPECT_TRUE(Notices(0).empty());
}

TEST_F(LateRoundsTest, AreForgottenWhenTheJobGoesOn) {
  Begin();
  WaitForRank2();
  BeatFor(kLate + kSecond);
  EXPECT_EQ(Notices(0).size(), 1u);
  cores[0]->fill_stalls = nullptr;
  for (int i = 0; i < 100; ++i) {
    CompleteIteration(kUsual, LateRounds::kIterationsMin);
    BeatFor(kUsual);
  }
  EXPECT_EQ(Notices(0).size(), 1u);
}

}  // namespace
}  // namespace phub::server
