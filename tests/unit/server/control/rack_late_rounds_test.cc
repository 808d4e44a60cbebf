// Rounds across racks that take much longer than usual: the ranks of the racks that wait are
// notified which ranks of other racks are late.
#include "server/control/ranks/late_rounds.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

constexpr DurationNs kUsual = 500 * kMillisecond;
constexpr DurationNs kLate = LateRounds::kTimesUsual * kUsual;
constexpr std::uint64_t kIteration = 8;

class RackLateRoundsTest : public RackJobsTest {
 protected:
  void Begin() {
    EnterAllWithAKey();
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
      ShardMetrics& metrics =
          node(rack).cores[0]->Executed(Command::Kind::kAddJob).at(0).shard->metrics;
      metrics.iteration.Set(kIteration - 1);
      metrics.iteration_ns.Set(kUsual);
      metrics.iteration_at.Set(static_cast<std::uint64_t>(node(rack).clock.now));
      metrics.iterations_timed.Set(LateRounds::kIterationsMin);
    }
  }
  // The ranks of this rack have pushed the round, and wait for other racks.
  void WaitAt(std::uint32_t rack) {
    node(rack).cores[0]->fill_stalls = [since = node(rack).clock.now](StallReport& report) {
      report.across = {KeyIndex{0}, Iteration{kIteration}, since};
    };
  }
  // A core loop that reports the round only if it is asked for it, because no rank has pushed it.
  void MissAt(std::uint32_t rack, std::uint64_t missing) {
    node(rack).cores[0]->fill_stalls = [missing](StallReport& report) {
      if (!report.asked || report.asked->iteration != Iteration{kIteration}) return;
      report.count = 1;
      report.entries[0].key = report.asked->key;
      report.entries[0].iteration = report.asked->iteration;
      report.entries[0].chunks_waiting = 1;
      report.entries[0].missing[0] = missing;
    };
  }
  std::vector<v1::RoundLate> Notices(std::uint32_t rank) {
    std::vector<v1::RoundLate> notices;
    for (const v1::SessionEvent& event : NodeOf(rank).sinks[sessions[rank]]->events) {
      if (event.has_late()) notices.push_back(event.late());
    }
    return notices;
  }
  std::uint64_t RefusedAt(std::uint32_t rack) {
    return node(rack).Counter("phub_peers_refused_place_total");
  }
  v1::PeerMessage Answer(std::uint32_t rank, std::uint64_t iteration = kIteration) {
    v1::PeerMessage message;
    message.mutable_round_late()->set_iteration(iteration);
    message.mutable_round_late()->set_late_count(1);
    message.mutable_round_late()->add_ranks()->set_rank(rank);
    return message;
  }
};

TEST_F(RackLateRoundsTest, NameTheRanksOfOtherRacks) {
  Begin();
  for (const std::uint32_t rack : {0u, 1u}) WaitAt(rack);
  MissAt(2, 0b11);  // ranks 4 and 5
  Advance(kLate - kSecond / 2);
  EXPECT_TRUE(Notices(0).empty());
  Advance(kSecond);
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    ASSERT_EQ(Notices(rank).size(), 1u) << rank;
    const v1::RoundLate late = Notices(rank)[0];
    EXPECT_EQ(late.key(), "w");
    EXPECT_EQ(late.iteration(), kIteration);
    EXPECT_EQ(late.usual_ns(), kUsual);
    EXPECT_GE(late.waiting_ns(), kLate);
    EXPECT_EQ(late.late_count(), 2u);
    ASSERT_EQ(late.ranks_size(), 2);
    EXPECT_EQ(late.ranks(0).rank(), 4u);
    EXPECT_EQ(late.ranks(1).rank(), 5u);
    EXPECT_EQ(late.ranks(1).host(), "node5");
  }
  EXPECT_TRUE(Notices(4).empty());
  Advance(LateRounds::kNoticeInterval - kSecond);
  EXPECT_EQ(Notices(0).size(), 1u);
  Advance(2 * kSecond);
  EXPECT_EQ(Notices(0).size(), 2u);
}

TEST_F(RackLateRoundsTest, AccuseNobodyIfEveryRankIsInTime) {
  Begin();
  WaitAt(0);
  for (const std::uint32_t rack : {1u, 2u}) MissAt(rack, 0);
  Advance(2 * kLate);
  EXPECT_GT(node(1).cores[0]->Executed(Command::Kind::kReportStalls).size(), 0u);
  for (const std::uint32_t rank : {0u, 3u, 5u}) EXPECT_TRUE(Notices(rank).empty()) << rank;
}

TEST_F(RackLateRoundsTest, AreListedAsStallsThatWaitForRacks) {
  Begin();
  WaitAt(0);
  Advance(kSecond);
  v1::ListStallsRequest request;
  request.set_job("digits");
  const auto stalls = node(0).ListStalls(request);
  Settle();
  ASSERT_EQ(stalls->response.stalls_size(), 1);
  EXPECT_EQ(stalls->response.stalls(0).key(), "w");
  EXPECT_EQ(stalls->response.stalls(0).since_ns(), kSecond);
  EXPECT_TRUE(stalls->response.stalls(0).waits_for_racks());
  EXPECT_EQ(stalls->response.stalls(0).waiting_for_size(), 0);
}

TEST_F(RackLateRoundsTest, TakeAnswersOnlyToTheirQuestionAndAboutTheSendersRanks) {
  Begin();
  Say(2, 0, incarnation, Answer(4));  // nobody has asked
  WaitAt(0);
  MissAt(1, 0);
  MissAt(2, 0);
  Advance(kLate + kSecond);
  Say(2, 0, incarnation, Answer(4, kIteration + 1));
  Settle();
  EXPECT_EQ(RefusedAt(0), 0u);
  Say(2, 0, incarnation, Answer(3));
  Say(2, 0, incarnation, Answer(kRanks));
  Settle();
  EXPECT_EQ(RefusedAt(0), 2u);
  EXPECT_TRUE(Notices(0).empty());
  v1::PeerMessage message = Answer(4);
  message.mutable_round_late()->mutable_ranks(0)->set_host(std::string(100'000, '\n'));
  Say(2, 0, incarnation, message);
  Settle();
  ASSERT_EQ(Notices(0).size(), 1u);
  EXPECT_LT(Notices(0)[0].ranks(0).host().size(), 1000u);
  // Expect: a question about a key that the job does not have is not answered.
  v1::PeerMessage question;
  question.mutable_round_waits()->set_key(1000);
  Say(2, 0, incarnation, question);
  Settle();
  ExpectRunStateEverywhere("standing");
}

}  // namespace
}  // namespace phub::server
