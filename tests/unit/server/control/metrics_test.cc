// The daemon's numbers: samples and GetStats while jobs start, run and end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/held_background.h"

namespace phub::server {
namespace {

class MetricsTest : public ControlTest {
 protected:
  // The metrics that core loop `core` would write. Searches the newest job first, because shards of
  // ended jobs are gone.
  ShardMetrics& MetricsOf(const std::string& job, std::uint32_t core) {
    const auto added = cores[core]->Executed(Command::Kind::kAddJob);
    for (auto it = added.rbegin(); it != added.rend(); ++it) {
      const Command& command = *it;
      if (command.shard->config.incarnation == incarnations[job]) return command.shard->metrics;
    }
    ADD_FAILURE() << "no shard of " << job;
    std::abort();
  }
  std::vector<std::string> EnterNamed(std::uint32_t world_size, const std::string& job) {
    const auto sessions = EnterAll(world_size, job);
    incarnations[job] = Incarnation{last_join.incarnation()};
    return sessions;
  }
  // In as many turns as it takes.
  MetricsSample Sample() {
    Metrics::Sampling sampling;
    do {
      control().turns().Begin();
      ++turns;
    } while (!control().metrics().SampleMore(sampling));
    return sampling.sample;
  }
  void EndInOrder(const std::vector<std::string>& sessions) {
    for (const std::string& session : sessions) Leave(session);
    Advance(kSecond);
  }
  std::map<std::string, Incarnation> incarnations;
  int turns = 0;
};

TEST_F(MetricsTest, AJobsNumbersAreTheSumOverCoreLoops) {
  EnterNamed(2, "digits");
  for (std::uint32_t core = 0; core < 2; ++core) {
    ShardMetrics& metrics = MetricsOf("digits", core);
    metrics.CountGradient(1000);
    metrics.CountRound(3 * kMillisecond);
    metrics.CountLast(Rank{1}, 2 * kMillisecond);
    metrics.slots_used.Add(3);
  }
  const MetricsSample sample = Sample();
  ASSERT_EQ(sample.jobs.size(), 1u);
  const JobSample& job = sample.jobs.front();
  EXPECT_EQ(job.job, "digits");
  EXPECT_EQ(job.tenant, "default");
  EXPECT_EQ(job.totals.gradients, 2u);
  EXPECT_EQ(job.totals.gradient_bytes, 2000u);
  EXPECT_EQ(job.totals.rounds(), 2u);
  EXPECT_EQ(job.totals.straggler_wait_ns, 4u * kMillisecond);
  EXPECT_EQ(job.slots, 2u * 4 * 2);  // ranks, slots of a lane, core loops
  EXPECT_EQ(job.slots_used, 6u);
  EXPECT_EQ(job.workers.live, 2u);
  EXPECT_EQ(job.memory_bytes, control().memory_bytes());
  v1::GetJobRequest request;
  request.set_job("digits");
  const v1::JobInfo info = GetJob(request)->response;
  EXPECT_EQ(info.workers(1).rounds_last(), 2u);
  EXPECT_EQ(info.workers(1).straggler_wait_ns(), 4u * kMillisecond);
  EXPECT_EQ(info.workers(0).rounds_last(), 0u);
}

TEST_F(MetricsTest, ATenantsTotalsNeverShrink) {
  const auto first = EnterNamed(1, "first");
  MetricsOf("first", 0).CountGradient(500);
  MetricsOf("first", 1).CountRound(kMillisecond);
  EndInOrder(first);
  EXPECT_EQ(control().memory_bytes(), 0u);
  const MetricsSample after = Sample();
  EXPECT_TRUE(after.jobs.empty());
  ASSERT_EQ(after.tenants.size(), 1u);
  EXPECT_EQ(after.tenants[0].totals.gradient_bytes, 500u);
  EXPECT_EQ(after.tenants[0].totals.rounds(), 1u);
  EXPECT_EQ(after.tenants[0].jobs, 0u);
  EnterNamed(1, "second");
  MetricsOf("second", 0).CountGradient(70);
  const MetricsSample now = Sample();
  EXPECT_EQ(now.tenants[0].totals.gradient_bytes, 570u);
  EXPECT_EQ(now.tenants[0].jobs, 1u);
  EXPECT_EQ(now.tenants[0].live_workers, 1u);
  EXPECT_EQ(now.tenants[0].memory_quota_bytes, options.memory_bytes_max);
}

TEST_F(MetricsTest, NamesAreBounded) {
  options.memory_bytes_max = std::uint64_t{4} << 30;
  const std::size_t count = kJobsSampledMax + 3;
  for (std::size_t i = 0; i < count; ++i) Enter(0, 1, "job" + std::to_string(i));
  const MetricsSample sample = Sample();
  EXPECT_EQ(sample.jobs.size(), kJobsSampledMax);
  EXPECT_EQ(sample.jobs_omitted, 3u);
  EXPECT_EQ(sample.jobs_running, count);
  EXPECT_EQ(sample.tenants[0].jobs, count);  // counted all the same
  EXPECT_EQ(sample.jobs.front().job, "job0");
}

TEST_F(MetricsTest, AJobThatFailedIsEndingUntilItsMemoryIsBack) {
  Enter(0, 2);
  cores[0]->stopped = true;
  Advance(options.liveness_timeout + kSecond);
  MetricsSample sample = Sample();
  EXPECT_EQ(sample.jobs_running, 0u);
  EXPECT_EQ(sample.jobs_ending, 1u);
  EXPECT_TRUE(sample.jobs.empty());
  cores[0]->stopped = false;
  Advance(kSecond);
  EXPECT_EQ(Sample().jobs_ending, 0u);
}

TEST_F(MetricsTest, StatsTellTheSame) {
  EnterNamed(1, "digits");
  MetricsOf("digits", 1).CountGradient(64);
  MetricsOf("digits", 1).CountRound(5 * kMillisecond);
  EXPECT_EQ(Counter("phub_job_gradient_bytes_total"), 64u);
  EXPECT_EQ(Counter("phub_job_rounds_total"), 1u);
  EXPECT_EQ(Counter("phub_tenant_gradient_bytes_total"), 64u);
  EXPECT_EQ(Counter("phub_tenant_memory_bytes"), control().memory_bytes());
}

TEST_F(MetricsTest, ManyJobsAreSampledInTurnsAndTheirWorkCountsOnce) {
  options.liveness_timeout = 1000 * kSecond;
  options.turn.jobs = 2;
  std::map<std::string, std::vector<std::string>> sessions;
  for (const char* const name : {"a", "b", "c", "d", "e"}) {
    sessions[name] = EnterNamed(1, name);
    MetricsOf(name, 0).CountGradient(100);
  }
  Metrics::Sampling sampling;
  control().turns().Begin();
  EXPECT_FALSE(control().metrics().SampleMore(sampling));
  EXPECT_EQ(control().turns().units(), 2u);
  // One job that was visited ends, and one that was not; a job that begins now is left out.
  EndInOrder(sessions["a"]);
  EndInOrder(sessions["e"]);
  EnterNamed(1, "f");
  for (const bool complete : {false, true}) {
    control().turns().Begin();
    EXPECT_EQ(control().metrics().SampleMore(sampling), complete);
    EXPECT_LE(control().turns().units(), 2u);
  }
  EXPECT_EQ(sampling.sample.jobs.size(), 4u);
  EXPECT_EQ(sampling.sample.tenants[0].totals.gradient_bytes, 500u);
  turns = 0;
  EXPECT_EQ(Sample().jobs_running, 4u);
  EXPECT_EQ(turns, 3);
}

// More than the metrics port has names for. Each tenant has an ended job, and a few run one.
TEST_F(MetricsTest, StatsHaveAllJobsAndTenantsInPages) {
  options.turn.jobs = 16;
  options.memory_bytes_max = std::uint64_t{16} << 30;
  constexpr std::size_t kTenants = kTenantsSampledMax + 20;
  constexpr std::size_t kJobs = kJobsSampledMax + 20;
  for (std::size_t i = 0; i < kTenants; ++i) {
    const std::string tenant = fmt::format("t{:04}", i);
    control().tenants().SetTenant({.name = tenant});
    v1::JoinRequest join = JoinOf(0, 1, "ended");
    join.set_tenant(tenant);
    const std::string session = EnterAs(join);
    incarnations["ended"] = Incarnation{last_join.incarnation()};
    MetricsOf("ended", 0).CountGradient(i + 1);
    Leave(session);
    Settle();
    join.set_job("job");
    if (i < kJobs) EnterAs(join);
  }
  Advance(kSecond);
  EXPECT_EQ(Sample().tenants.size(), kTenantsSampledMax);
  HeldBackground background;
  control().turns().SetBackground(background);
  std::map<std::string, std::uint64_t> bytes;  // [tenant]
  std::size_t jobs = 0;
  v1::GetStatsRequest request;
  request.set_page_size(100);
  do {
    control().turns().Begin();
    const auto page = GetStats(request);
    do {
      EXPECT_LE(control().turns().units(), 16u);
      control().turns().Begin();
    } while (background.RunOne());
    ASSERT_TRUE(page->ok()) << page->message();
    for (const v1::Counter& counter : page->response.counters()) {
      if (counter.name() == "phub_job_slots") ++jobs;
      if (counter.name() == "phub_tenant_gradient_bytes_total")
        bytes[counter.tenant()] += counter.value();
    }
    request.set_page_token(page->response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(jobs, kJobs);
  EXPECT_EQ(bytes.size(), kTenants + 1);  // and the default tenant
  for (std::size_t i = 0; i < kTenants; ++i) EXPECT_EQ(bytes[fmt::format("t{:04}", i)], i + 1) << i;
  request.set_page_token("nonsense");
  EXPECT_EQ(GetStats(request)->code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MetricsTest, TheBytesOfTenantsIncludeEndedJobs) {
  const auto ended = EnterNamed(1, "ended");
  MetricsOf("ended", 0).CountGradient(500);
  EndInOrder(ended);
  EnterNamed(1, "running");
  MetricsOf("running", 1).CountGradient(70);
  control().turns().Begin();
  const auto bytes = control().tenants().PushedBytes({{.name = "default"}, {.name = "acme"}});
  EXPECT_EQ(control().turns().units(), 2u);
  EXPECT_EQ(bytes.at("default"), 570u);
  EXPECT_EQ(bytes.at("acme"), 0u);
}

// Calls that arrive while a sample is made share the next one, so their number does not matter.
TEST_F(MetricsTest, StatsOfManyJobsAreMadeInTurnsAndShared) {
  options.turn.jobs = 2;
  options.turn.at_once = 4;
  for (int i = 0; i < 7; ++i) Enter(0, 1, "job" + std::to_string(i));
  HeldBackground background;
  control().turns().SetBackground(background);
  control().turns().Begin();
  std::vector<CallPtr<v1::GetStatsResponse>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(GetStats({}));
  turns = 1;
  do {
    EXPECT_LE(control().turns().units(), 2u);
    control().turns().Begin();
  } while (background.RunOne() && ++turns < 100);
  // Two samples of four turns, one turn between them, and one for each answer.
  EXPECT_LE(turns, 30);
  for (const auto& call : calls) {
    ASSERT_TRUE(call->ok());
    EXPECT_GT(call->response.counters_size(), 7);
  }
}

}  // namespace
}  // namespace phub::server
