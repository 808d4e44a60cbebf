#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/held_background.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AdminTest : public ControlTest {
 protected:
  CallPtr<v1::JobInfo> JobNamed(const std::string& name) {
    v1::GetJobRequest request;
    request.set_job(name);
    return GetJob(request);
  }
  CallPtr<v1::ListStallsResponse> StallsOf(const std::string& name, DurationNs min = 0) {
    v1::ListStallsRequest request;
    request.set_job(name);
    request.set_waiting_for_ns_min(min);
    return ListStalls(request);
  }
  // 256 rounds wait for all ranks but rank 0.
  void StallAllRounds(std::uint32_t world_size) {
    cores[0]->fill_stalls = [this, world_size](StallReport& report) {
      for (StallReport::Entry& entry : report.entries) {
        entry.key = KeyIndex{report.count};
        entry.iteration = Iteration{1};
        for (std::uint32_t rank = 1; rank < world_size; ++rank)
          entry.missing[rank / 64] |= std::uint64_t{1} << (rank % 64);
        entry.chunks_waiting = 1;
        entry.since = clock.now - report.count++;
      }
    };
  }
};

TEST_F(AdminTest, TheServerSaysWhatItIs) {
  options.commit = "abc";
  options.simd_target = "AVX2";
  Enter(0, 1);
  Advance(kSecond);
  const v1::ServerInfo info = GetServer({})->response;
  EXPECT_EQ(info.version(), "0.1.0");
  EXPECT_EQ(info.commit(), "abc");
  EXPECT_EQ(info.simd_target(), "AVX2");
  EXPECT_EQ(info.state(), "serving");
  EXPECT_EQ(info.core_count(), 2u);
  EXPECT_EQ(info.job_count(), 1u);
  EXPECT_EQ(info.uptime_ns(), kSecond);
  EXPECT_EQ(info.lane_version_max(), wire::kLaneVersion);
  control().draining().Drain(kSecond);
  EXPECT_EQ(GetServer({})->response.state(), "draining");
}

TEST_F(AdminTest, JobsAreDescribedWithTheirWorkers) {
  const std::string session = Enter(0, 2);
  AddKeys(Batch(session, 0, {Key("w", 1000)}));
  OpenAllLanes(session, 0);
  Advance(kSecond / 2);
  const auto call = JobNamed("digits");
  ASSERT_TRUE(call->ok());
  const v1::JobInfo& info = call->response;
  EXPECT_EQ(info.tenant(), "default");
  EXPECT_EQ(info.state(), "running");
  EXPECT_EQ(info.incarnation().size(), 16u);
  EXPECT_EQ(info.key_count(), 1u);
  EXPECT_EQ(info.parameter_bytes(), 4000u);
  EXPECT_EQ(info.memory_bytes(), control().memory_bytes());
  EXPECT_EQ(info.on_loss(), "fail");
  ASSERT_EQ(info.workers_size(), 2);
  EXPECT_EQ(info.workers(0).state(), "live");
  EXPECT_EQ(info.workers(0).host(), "node0");
  EXPECT_EQ(info.workers(0).lanes_open(), 2u);
  EXPECT_EQ(info.workers(0).address(), "127.0.0.1:5000");
  EXPECT_EQ(info.workers(0).last_heartbeat_age_ns(), kSecond / 2);
  EXPECT_EQ(info.workers(1).state(), "awaited");
}

TEST_F(AdminTest, AJobThatIsNotThereIsAnsweredWithThoseThatAre) {
  Enter(0, 1, "one");
  Enter(0, 1, "two");
  const auto call = JobNamed("three");
  EXPECT_EQ(call->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("three"), HasSubstr("one, two")));
}

TEST_F(AdminTest, EndedAndFailedJobsAreRememberedUpToALimit) {
  options.ended_jobs_max = 2;
  std::string first_session;
  for (int i = 0; i < 3; ++i) {
    const std::string session = Enter(0, 1, "job" + std::to_string(i));
    if (i == 0) first_session = session;
    Advance(options.liveness_timeout);
    Advance(options.teardown_delay);
  }
  const v1::ListJobsResponse jobs = ListJobs({})->response;
  ASSERT_EQ(jobs.jobs_size(), 2);
  EXPECT_EQ(jobs.jobs(0).name(), "job1");
  EXPECT_EQ(jobs.jobs(1).state(), "failed");
  EXPECT_THAT(jobs.jobs(1).fault(), HasSubstr("rank 0"));
  EXPECT_EQ(jobs.jobs(1).memory_bytes(), 0u);
  EXPECT_EQ(jobs.jobs(1).workers(0).state(), "dead");
  // Expect: the sessions of the forgotten job are forgotten too.
  EXPECT_EQ(Barrier(first_session, 0)->code(), absl::StatusCode::kNotFound);
}

TEST_F(AdminTest, JobsAreListedInPages) {
  std::vector<std::string> sessions;
  for (int i = 0; i < 7; ++i) sessions.push_back(Enter(0, 1, "job" + std::to_string(i)));
  Settle();
  v1::ListJobsRequest request;
  request.set_page_size(3);
  std::vector<std::string> names;
  int pages = 0;
  do {
    const auto page = ListJobs(request);
    ASSERT_TRUE(page->ok()) << page->message();
    EXPECT_LE(page->response.jobs_size(), 3);
    for (const v1::JobInfo& job : page->response.jobs()) names.push_back(job.name());
    // A job of this page ends, and a new one begins.
    if (++pages == 1) {
      Leave(sessions[1]);
      Settle();
      Enter(0, 1, "job7");
    }
    request.set_page_token(page->response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(names, ::testing::ElementsAre("job0", "job1", "job2", "job3", "job4", "job5", "job6",
                                            "job7"));
  // Expect: without a page size everything comes at once.
  EXPECT_EQ(ListJobs({})->response.jobs_size(), 8);
  request.set_page_token("nonsense");
  EXPECT_EQ(ListJobs(request)->code(), absl::StatusCode::kInvalidArgument);
}

// Older clients do not request pages.
TEST_F(AdminTest, AWholeListIsMadeInTurnsOfAPage) {
  HeldBackground background;
  options.turn.jobs = 3;
  for (int i = 0; i < 8; ++i) Enter(0, 1, "job" + std::to_string(i));
  control().turns().SetBackground(background);
  control().turns().Begin();
  const auto list = ListJobs({});
  int turns = 1;
  do {
    EXPECT_LE(control().turns().units(), 6u);  // a job and its rank are two
    control().turns().Begin();
  } while (background.RunOne() && ++turns < 100);
  EXPECT_EQ(turns, 3);
  ASSERT_TRUE(list->ok()) << list->message();
  ASSERT_EQ(list->response.jobs_size(), 8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(list->response.jobs(i).name(), "job" + std::to_string(i));
}

// A job may have 1024 ranks.
TEST_F(AdminTest, TheRanksOfAJobAreDescribedInTurns) {
  HeldBackground background;
  options.turn.ranks = 4;
  std::vector<std::string> sessions;
  for (std::uint32_t rank = 0; rank < 11; ++rank) sessions.push_back(Enter(rank, 11));
  Enter(0, 1, "small");
  control().turns().SetBackground(background);
  const auto in_turns = [&](const auto& ask) {
    control().turns().Begin();
    const auto call = ask();
    int turns = 1;
    do {
      EXPECT_LE(control().turns().units(), 5u);
      control().turns().Begin();
    } while (background.RunOne() && ++turns < 100);
    EXPECT_GE(turns, 3);
    EXPECT_TRUE(call->ok()) << call->message();
    return call;
  };
  const auto job = in_turns([&] { return JobNamed("digits"); });
  ASSERT_EQ(job->response.workers_size(), 11);
  for (std::uint32_t rank = 0; rank < 11; ++rank)
    EXPECT_EQ(job->response.workers(static_cast<int>(rank)).rank(), rank);
  v1::ListJobsRequest request;
  request.set_page_size(10);
  const auto list = in_turns([&] { return ListJobs(request); });
  ASSERT_EQ(list->response.jobs_size(), 2);
  EXPECT_EQ(list->response.jobs(0).workers_size(), 11);
  EXPECT_EQ(list->response.jobs(1).name(), "small");
  EXPECT_EQ(in_turns([&] { return ListJobs({}); })->response.jobs(0).workers_size(), 11);
}

// The job ends, and is forgotten, while it is described.
TEST_F(AdminTest, AJobThatIsForgottenMeanwhileIsNotHalfDescribed) {
  HeldBackground background;
  options.turn.ranks = 1;
  options.ended_jobs_max = 1;
  const std::vector<std::string> sessions = {Enter(0, 2), Enter(1, 2)};
  const std::string other = Enter(0, 1, "other");
  control().turns().SetBackground(background);
  control().turns().Begin();
  const auto job = JobNamed("digits");
  v1::ListJobsRequest request;
  request.set_page_size(10);
  const auto list = ListJobs(request);
  EXPECT_FALSE(job->answered());
  EXPECT_FALSE(list->answered());
  for (const std::string& session : sessions) Leave(session);
  Settle();
  Leave(other);
  Settle();
  do control().turns().Begin();
  while (background.RunOne());
  EXPECT_EQ(job->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(job->message(), HasSubstr("forgotten"));
  ASSERT_EQ(list->response.jobs_size(), 1);
  EXPECT_EQ(list->response.jobs(0).name(), "other");
}

TEST_F(AdminTest, TheNewestRunOfANameIsDescribed) {
  const std::string session = Enter(0, 1);
  Leave(session);
  Settle();
  EXPECT_EQ(JobNamed("digits")->response.state(), "ended");
  Enter(0, 1);
  EXPECT_EQ(JobNamed("digits")->response.state(), "running");
}

TEST_F(AdminTest, StallsAreMergedOverCoresAndNameWhoIsMissing) {
  const std::vector<std::string> sessions = {Enter(0, 3), Enter(1, 3)};  // rank 2 never joins
  AddKeysOfAll(sessions, {Key("conv", 1000), Key("fc", 10)});
  OpenAllLanes(sessions[1], 1);
  const TimeNs begun = clock.now;
  const auto entry = [](StallReport& report, std::uint32_t key, std::uint64_t missing,
                        std::uint32_t chunks, TimeNs since) {
    StallReport::Entry& added = report.entries[report.count++];
    added.key = KeyIndex{key};
    added.iteration = Iteration{3};
    added.missing[0] = missing;
    added.chunks_waiting = chunks;
    added.since = since;
  };
  cores[0]->fill_stalls = [&](StallReport& report) { entry(report, 0, 0b100, 2, begun + 10); };
  cores[1]->fill_stalls = [&](StallReport& report) {
    entry(report, 0, 0b110, 1, begun);
    entry(report, 1, 0b010, 1, begun + kSecond / 2);
  };
  Advance(kSecond);
  const auto call = StallsOf("digits");
  EXPECT_FALSE(call->answered());
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  ASSERT_EQ(call->response.stalls_size(), 2);
  const v1::Stall& stall = call->response.stalls(0);
  EXPECT_EQ(stall.key(), "conv");
  EXPECT_EQ(stall.iteration(), 3u);
  EXPECT_EQ(stall.chunks_waiting(), 3u);
  EXPECT_EQ(stall.since_ns(), kSecond);
  ASSERT_EQ(stall.waiting_for_size(), 2);
  EXPECT_EQ(stall.waiting_for(0).rank(), 1u);
  EXPECT_EQ(stall.waiting_for(0).host(), "node1");
  EXPECT_EQ(stall.waiting_for(0).state(), "live");
  EXPECT_EQ(stall.waiting_for(0).lane(), "tcp 10.0.0.5:40112");
  EXPECT_EQ(stall.waiting_for(0).last_heartbeat_age_ns(), kSecond);
  EXPECT_EQ(stall.waiting_for(1).rank(), 2u);
  EXPECT_EQ(stall.waiting_for(1).state(), "awaited");
  EXPECT_THAT(stall.waiting_for(1).lane(), HasSubstr("has not joined"));
  EXPECT_THAT(stall.pushed_by(), ElementsAre(0u));
  EXPECT_EQ(call->response.stalls(1).key(), "fc");
  EXPECT_THAT(call->response.stalls(1).pushed_by(), ElementsAre(0u, 2u));
  // Recent rounds can be left out.
  const auto old = StallsOf("digits", kSecond * 3 / 4);
  Settle();
  EXPECT_EQ(old->response.stalls_size(), 1);
}

TEST_F(AdminTest, StallsOfLargeJobsAreThoseThatWaitLongest) {
  constexpr std::uint32_t kRanks = 200;
  const std::string session = Enter(0, kRanks);
  StallAllRounds(kRanks);
  const auto call = StallsOf("digits");
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  ASSERT_EQ(call->response.stalls_size(), 6);  // 5 have less than 1024 ranks together
  EXPECT_EQ(call->response.stalls(0).key(), "number 255");
  EXPECT_EQ(call->response.stalls(5).key(), "number 250");
  EXPECT_EQ(call->response.stalls(5).waiting_for_size(), static_cast<int>(kRanks - 1));
  EXPECT_THAT(call->response.stalls(5).pushed_by(), ElementsAre(0u));
}

TEST_F(AdminTest, StallsOfLargeJobsAreDescribedInTurns) {
  constexpr std::uint32_t kRanks = 200;
  HeldBackground background;
  options.turn.at_once = options.turn.ranks = 32;
  Enter(0, kRanks);
  StallAllRounds(kRanks);
  const auto at_once = StallsOf("digits");
  Settle();
  control().turns().SetBackground(background);
  const auto in_turns = StallsOf("digits");
  Settle();
  int turns = 0;
  do {
    EXPECT_LE(control().turns().units(), 32u);
    control().turns().Begin();
  } while (background.RunOne() && ++turns < 1000);
  EXPECT_GE(turns, static_cast<int>(6 * (kRanks - 1) / 32));
  ASSERT_TRUE(in_turns->ok()) << in_turns->message();
  EXPECT_EQ(in_turns->response.SerializeAsString(), at_once->response.SerializeAsString());
}

TEST_F(AdminTest, StallsOfAJobThatEndsMeanwhileAreNotHalfDescribed) {
  HeldBackground background;
  options.turn.at_once = options.turn.ranks = 1;
  const std::vector<std::string> sessions = {Enter(0, 2), Enter(1, 2)};
  StallAllRounds(2);
  control().turns().SetBackground(background);
  const auto call = StallsOf("digits");
  Settle();
  ASSERT_TRUE(background.RunOne());
  for (const std::string& session : sessions) Leave(session);
  Settle();
  do control().turns().Begin();
  while (background.RunOne());
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), HasSubstr("job digits ended"));
}

TEST_F(AdminTest, ACoreThatDoesNotAnswerIsNamed) {
  const std::string session = Enter(0, 1);
  cores[1]->silent_on_stalls = true;
  const auto call = StallsOf("digits");
  Heartbeat(session);
  Advance(options.report_timeout);
  EXPECT_EQ(call->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(call->message(), HasSubstr("core loop 1"));
}

TEST_F(AdminTest, StallsHaveTheBarrierThatRanksWaitIn) {
  constexpr DurationNs kWait = 10 * kMillisecond;
  const auto barrier_of = [&](DurationNs min) {
    const auto call = StallsOf("digits", min);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    return call->response.has_barrier() ? std::optional(call->response.barrier()) : std::nullopt;
  };
  const std::string first = Enter(0, 3);
  const std::string second = Enter(1, 3);
  Enter(2, 3);
  EXPECT_FALSE(barrier_of(0));
  const auto in_barrier = Barrier(second, 0);
  Advance(kWait);
  const auto later = Barrier(first, 0);
  const std::optional<v1::StalledBarrier> barrier = barrier_of(kWait);
  ASSERT_TRUE(barrier);
  EXPECT_EQ(barrier->number(), 0u);
  EXPECT_THAT(barrier->waiting(), ElementsAre(0u, 1u));
  EXPECT_THAT(barrier->missing(), ElementsAre(2u));
  EXPECT_EQ(barrier->since_ns(), kWait);
  EXPECT_FALSE(barrier_of(kWait + 1));
}

TEST_F(AdminTest, AskingWithoutEndIsBounded) {
  Enter(0, 1);
  cores[0]->stopped = true;
  CallPtr<v1::ListStallsResponse> call;
  for (int i = 0; i < 17; ++i) call = StallsOf("digits");
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(AdminTest, StallsOfAJobThatFailedSayWhy) {
  Enter(0, 1);
  const auto pending = StallsOf("digits");
  Advance(options.liveness_timeout);
  const auto call = StallsOf("digits");
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), HasSubstr("sent no heartbeat for"));
  EXPECT_TRUE(pending->answered());
}

TEST_F(AdminTest, StatsHaveEveryCoreAndControl) {
  Enter(0, 1);
  cores[1]->counters.Add(CoreCounter::gradients, 7);
  const v1::GetStatsResponse stats = GetStats({})->response;
  int gradients = 0;
  bool job_memory = false;
  for (const v1::Counter& counter : stats.counters()) {
    if (counter.name() == "phub_gradients_total") {
      ++gradients;
      EXPECT_EQ(counter.value(), counter.core() == 1 ? 7u : 0u);
    }
    job_memory |= counter.name() == "phub_job_memory_bytes" && counter.job() == "digits" &&
                  counter.tenant() == "default" && counter.value() == control().memory_bytes();
  }
  EXPECT_EQ(gradients, 2);
  EXPECT_TRUE(job_memory);
  EXPECT_EQ(Counter("phub_jobs_created_total"), 1u);
  EXPECT_EQ(Counter("phub_joins_total"), 1u);
}

}  // namespace
}  // namespace phub::server
