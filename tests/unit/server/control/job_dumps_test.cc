// Dumps of jobs: what ranks answer, what they do not answer, and what that costs.
#include "server/control/admin/job_dumps.h"

#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/held_background.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class JobDumpsTest : public ControlTest {
 protected:
  JobDumpsTest() { options.liveness_timeout = 600 * kSecond; }

  void Enter(std::uint32_t world_size, std::uint32_t joined, const std::string& job = "digits") {
    for (std::uint32_t rank = 0; rank < joined; ++rank) {
      v1::JoinRequest request = JoinOf(rank, world_size, job);
      request.set_dumps(true);
      sessions_.push_back(EnterAs(request));
    }
    Settle();
  }
  CallPtr<v1::JobDump> Dump(DurationNs wait = 0, const std::string& job = "digits",
                            const std::string& tenant = "") {
    v1::DumpJobRequest request;
    request.set_tenant(tenant);
    request.set_job(job);
    request.set_wait_ns(wait);
    auto [call, answer] = Expect<v1::JobDump>();
    control().job_dumps().DumpJob(request, answer);
    Settle();
    return call;
  }
  std::vector<v1::DumpRequested> Questions(std::size_t session) {
    std::vector<v1::DumpRequested> questions;
    for (const v1::SessionEvent& event : sinks[sessions_[session]]->events) {
      if (event.has_dump()) questions.push_back(event.dump());
    }
    return questions;
  }
  CallPtr<v1::ReportDumpResponse> Report(std::size_t session, const v1::RankRecord& record,
                                         bool more = false) {
    v1::ReportDumpRequest request;
    request.set_session_id(sessions_[session]);
    request.set_number(Questions(session).empty() ? 1 : Questions(session).back().number());
    *request.mutable_record() = record;
    request.set_more(more);
    auto [call, answer] = Expect<v1::ReportDumpResponse>();
    control().job_dumps().ReportDump(request, answer);
    Settle();
    return call;
  }
  static v1::RankRecord RecordOf(const std::string& key) {
    v1::RankRecord record;
    v1::OpenRound& round = *record.add_rounds();
    round.set_key(key);
    round.set_iteration(8);
    round.set_operation("reduce");
    round.set_waiting_ns(kSecond);
    record.set_round_count(1);
    return record;
  }

  std::vector<std::string> sessions_;
};

TEST_F(JobDumpsTest, HaveTheRecordsOfAllRanksAndTheRoundsThatWait) {
  Enter(3, 3);
  AddKeysOfAll(sessions_, {Key("w", 10)});
  cores[0]->fill_stalls = [since = clock.now](StallReport& report) {
    report.count = 1;
    report.entries[0].key = KeyIndex{0};
    report.entries[0].iteration = Iteration{8};
    report.entries[0].since = since;
    report.entries[0].chunks_waiting = 1;
    report.entries[0].missing[0] = 1u << 2;
  };
  const auto call = Dump();
  EXPECT_FALSE(call->answered());
  for (const std::size_t rank : {0u, 1u, 2u}) {
    ASSERT_EQ(Questions(rank).size(), 1u);
    EXPECT_EQ(Questions(rank)[0].bytes_max(), JobDumps::kRankBytesMax);
  }
  EXPECT_TRUE(Report(0, RecordOf("w"))->ok());
  EXPECT_TRUE(Report(1, RecordOf("w"))->ok());
  EXPECT_FALSE(call->answered());
  EXPECT_TRUE(Report(2, v1::RankRecord())->ok());
  ASSERT_TRUE(call->ok()) << call->message();
  const v1::JobDump& dump = call->response;
  EXPECT_EQ(dump.tenant(), "default");
  EXPECT_EQ(dump.job(), "digits");
  EXPECT_EQ(dump.world_size(), 3u);
  EXPECT_EQ(dump.racks_size(), 0);
  ASSERT_EQ(dump.ranks_size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(dump.ranks(rank).rank(), static_cast<std::uint32_t>(rank));
    EXPECT_EQ(dump.ranks(rank).host(), "node" + std::to_string(rank));
    EXPECT_TRUE(dump.ranks(rank).answered());
    EXPECT_EQ(dump.ranks(rank).problem(), "");
    EXPECT_EQ(dump.ranks(rank).record().rounds_size(), rank == 2 ? 0 : 1);
  }
  EXPECT_EQ(dump.ranks(0).record().rounds(0).key(), "w");
  ASSERT_EQ(dump.stalls_size(), 1);
  EXPECT_EQ(dump.stalls(0).key(), "w");
  EXPECT_EQ(dump.stalls(0).waiting_for(0).rank(), 2u);
  EXPECT_EQ(Counter("phub_dumps_total"), 1u);
}

TEST_F(JobDumpsTest, NameRanksThatDoNotAnswerAndSayWhy) {
  Enter(5, 3);
  v1::JoinRequest old = JoinOf(3, 5);
  const std::string old_session = EnterAs(old);
  control().liveness().DetachStream(sessions_[1], streams[sessions_[1]]);
  const auto call = Dump();
  EXPECT_TRUE(Report(0, RecordOf("w"))->ok());
  Advance(JobDumps::kWaitDefault - kMillisecond);
  EXPECT_FALSE(call->answered());
  Advance(kMillisecond);
  ASSERT_TRUE(call->ok()) << call->message();
  const v1::JobDump& dump = call->response;
  EXPECT_TRUE(dump.ranks(0).answered());
  for (const int rank : {1, 2, 3, 4}) EXPECT_FALSE(dump.ranks(rank).answered());
  EXPECT_THAT(dump.ranks(1).problem(), HasSubstr("its event stream is not open"));
  EXPECT_EQ(dump.ranks(2).problem(), "did not answer within 2.0 s");
  EXPECT_EQ(dump.ranks(2).last_heartbeat_age_ns(), JobDumps::kWaitDefault);
  EXPECT_THAT(dump.ranks(3).problem(), HasSubstr("older than dumps"));
  EXPECT_EQ(dump.ranks(4).problem(), "has not joined");
  for (const v1::SessionEvent& event : sinks[old_session]->events) EXPECT_FALSE(event.has_dump());
  // Expect: an answer that comes too late is refused, and changes nothing.
  EXPECT_EQ(Report(2, RecordOf("w"))->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Counter("phub_dump_records_refused_total"), 1u);
}

TEST_F(JobDumpsTest, WaitForTheProgramsRecordWithinTheTime) {
  Enter(2, 2);
  const auto call = Dump(kSecond);
  v1::RankRecord more;
  more.set_headline("waits in operation 7, \x1b[31mall_reduce");
  more.set_text("1 \x07 one\n2 two\n");
  more.set_json("{\"a\":\n1}");
  EXPECT_TRUE(Report(0, RecordOf("w"), /*more=*/true)->ok());
  EXPECT_TRUE(Report(1, RecordOf("w"), /*more=*/true)->ok());
  EXPECT_TRUE(Report(0, more)->ok());
  EXPECT_FALSE(call->answered());
  Advance(kSecond);
  ASSERT_TRUE(call->ok()) << call->message();
  const v1::RankDump& complete = call->response.ranks(0);
  EXPECT_EQ(complete.problem(), "");
  EXPECT_EQ(complete.record().rounds_size(), 1);
  EXPECT_EQ(complete.record().headline(), "waits in operation 7, ?[31mall_reduce");
  EXPECT_EQ(complete.record().text(), "1 ? one\n2 two\n");
  EXPECT_EQ(complete.record().json(), "{\"a\":\n1}");
  const v1::RankDump& half = call->response.ranks(1);
  EXPECT_TRUE(half.answered());
  EXPECT_EQ(half.record().rounds_size(), 1);
  EXPECT_THAT(half.problem(), HasSubstr("recorder did not answer within 1.0 s"));
}

TEST_F(JobDumpsTest, RefuseRecordsThatAreTooLargeOrThatNobodyAskedFor) {
  Enter(2, 2);
  Enter(1, 1, "other");
  EXPECT_EQ(Report(0, RecordOf("w"))->code(), absl::StatusCode::kFailedPrecondition);
  const auto call = Dump();
  // A rank of another job, with the number of this dump.
  EXPECT_EQ(Report(2, RecordOf("w"))->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Report(0, RecordOf("w"))->ok());
  EXPECT_EQ(Report(0, RecordOf("x"))->code(), absl::StatusCode::kFailedPrecondition);
  v1::RankRecord huge;
  huge.set_text(std::string(JobDumps::kRankBytesMax, 'x'));
  EXPECT_EQ(Report(1, huge)->code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(call->response.ranks(0).record().rounds(0).key(), "w");
  EXPECT_FALSE(call->response.ranks(1).answered());
  EXPECT_THAT(call->response.ranks(1).problem(), HasSubstr("more than the limit of 65536"));
  EXPECT_LT(call->response.ByteSizeLong(), 2000u);
  EXPECT_EQ(Counter("phub_dump_records_refused_total"), 4u);
}

TEST_F(JobDumpsTest, LimitTheRecordsOfAllRanksTogether) {
  constexpr std::uint32_t kRanks = 200;
  Enter(kRanks, kRanks);
  const auto call = Dump();
  ASSERT_EQ(Questions(0).size(), 1u);
  const std::uint32_t bytes_max = Questions(0)[0].bytes_max();
  EXPECT_LE(std::size_t{bytes_max} * kRanks, JobDumps::kBytesMax);
  EXPECT_GE(bytes_max, JobDumps::kRankBytesMin);
}

TEST_F(JobDumpsTest, AreSharedByCallersAndFollowEachOtherSlowly) {
  Enter(1, 1);
  const auto first = Dump();
  const auto second = Dump();
  for (std::size_t i = 2; i < JobDumps::kCallersMax; ++i) Dump();
  const auto refused = Dump();
  EXPECT_EQ(refused->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Report(0, RecordOf("w"))->ok());
  EXPECT_TRUE(first->ok());
  EXPECT_TRUE(second->ok());
  EXPECT_EQ(Questions(0).size(), 1u);
  // Expect: the next one begins after a pause, although it was called at once.
  const auto third = Dump();
  EXPECT_EQ(Questions(0).size(), 1u);
  Advance(JobDumps::kPause);
  EXPECT_EQ(Questions(0).size(), 2u);
  EXPECT_TRUE(Report(0, RecordOf("w"))->ok());
  EXPECT_TRUE(third->ok());
  // Later ones begin at once.
  Advance(JobDumps::kPause);
  Dump();
  EXPECT_EQ(Questions(0).size(), 3u);
  EXPECT_EQ(Counter("phub_dumps_total"), 3u);
  EXPECT_EQ(Counter("phub_dumps_refused_total"), 1u);
}

TEST_F(JobDumpsTest, OfOneTenantLeaveRoomForOthers) {
  for (std::size_t i = 0; i <= JobDumps::kPerTenantMax; ++i) {
    Enter(1, 1, "job" + std::to_string(i));
  }
  control().tenants().SetTenant({.name = "other", .quota = {.memory_bytes = 1 << 20}});
  v1::JoinRequest other = JoinOf(0, 1, "theirs");
  other.set_tenant("other");
  other.set_dumps(true);
  sessions_.push_back(EnterAs(other));
  for (std::size_t i = 0; i < JobDumps::kPerTenantMax; ++i) {
    EXPECT_FALSE(Dump(0, "job" + std::to_string(i))->answered());
  }
  const auto refused = Dump(0, "job" + std::to_string(JobDumps::kPerTenantMax));
  EXPECT_EQ(refused->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused->message(), HasSubstr("tenant default"));
  EXPECT_FALSE(Dump(0, "theirs", "other")->answered());
}

TEST_F(JobDumpsTest, EndWithTheJob) {
  Enter(2, 2);
  const auto pending = Dump();
  Leave(sessions_[1], "it is enough");
  Advance(kSecond);
  ASSERT_TRUE(pending->answered());
  EXPECT_EQ(pending->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(pending->message(),
              AllOf(HasSubstr("ended while it was being dumped"), HasSubstr("it is enough")));
  EXPECT_EQ(Dump()->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Dump(0, "unknown")->code(), absl::StatusCode::kNotFound);
}

TEST_F(JobDumpsTest, NameBarriersAndCoreLoopsThatDoNotReport) {
  Enter(3, 3);
  cores[1]->silent_on_stalls = true;
  const auto barrier = Barrier(sessions_[1], 0);
  const auto call = Dump();
  for (const std::size_t rank : {0u, 1u, 2u}) Report(rank, v1::RankRecord());
  EXPECT_FALSE(call->answered());
  Advance(options.report_timeout);
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_THAT(call->response.stalls_problem(), HasSubstr("core loop 1"));
  ASSERT_TRUE(call->response.has_barrier());
  EXPECT_EQ(call->response.barrier().number(), 0u);
  EXPECT_THAT(call->response.barrier().waiting(), ElementsAre(1u));
  EXPECT_THAT(call->response.barrier().missing(), ElementsAre(0u, 2u));
}

class LongDumpsTest : public JobDumpsTest {
 protected:
  static constexpr std::uint32_t kRanks = 200;

  LongDumpsTest() { options.turn.ranks = 64; }
  void SetUp() override {
    Enter(kRanks, kRanks);
    control().turns().SetBackground(background);
  }
  bool RunOne() {
    control().turns().Begin();
    return background.RunOne();
  }
  void ReportAll() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      control().turns().Begin();
      EXPECT_TRUE(Report(rank, RecordOf("w"))->ok());
    }
  }

  HeldBackground background;
};

TEST_F(LongDumpsTest, DescribeFewRanksInATurn) {
  const auto call = Dump();
  ReportAll();
  EXPECT_FALSE(call->answered());
  // A caller that comes meanwhile gets the same dump.
  ASSERT_TRUE(RunOne());
  EXPECT_LE(control().turns().units(), 64u);
  const auto second = Dump();
  while (RunOne()) {
    // The ranks of the last part, and what is done at once.
    EXPECT_LE(control().turns().units(), 64u + options.turn.at_once);
  }
  for (const auto& each : {call, second}) {
    ASSERT_TRUE(each->ok()) << each->message();
    ASSERT_EQ(each->response.ranks_size(), static_cast<int>(kRanks));
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(each->response.ranks(static_cast<int>(rank)).rank(), rank);
      EXPECT_EQ(each->response.ranks(static_cast<int>(rank)).record().rounds(0).key(), "w");
    }
  }
  EXPECT_EQ(Counter("phub_dumps_total"), 1u);
}

TEST_F(LongDumpsTest, AJobMayEndBetweenTwoParts) {
  const auto call = Dump();
  ReportAll();
  ASSERT_TRUE(RunOne());
  v1::EvictJobRequest evict;
  evict.set_job("digits");
  EvictJob(evict);
  Settle();
  EXPECT_THAT(call->message(), HasSubstr("ended while it was being dumped"));
  while (RunOne()) continue;
}

}  // namespace
}  // namespace phub::server
