#include "client/cli/job_state.h"

#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace phub::client::cli {
namespace {

v1::JobInfo Job(const char* state, DurationNs each, DurationNs age) {
  v1::JobInfo job;
  job.set_state(state);
  job.set_iteration(each == 0 ? 0 : 1200);
  job.set_iteration_ns(each);
  job.set_iteration_age_ns(age);
  job.add_workers()->set_state("live");
  return job;
}

TEST(JobState, IterationsThatStopMakeAJobStalled) {
  EXPECT_EQ(StateText(Job("running", kMillisecond, 4 * kSecond)), "running");
  EXPECT_EQ(StateText(Job("running", kMillisecond, 6 * kSecond)), "stalled");
  // Long iterations are no stall.
  EXPECT_EQ(StateText(Job("running", 20 * kSecond, 190 * kSecond)), "running");
  EXPECT_EQ(StateText(Job("running", 20 * kSecond, 201 * kSecond)), "stalled");
  // Before the second iteration nothing is known.
  EXPECT_EQ(StateText(Job("running", 0, 3600 * kSecond)), "running");
  EXPECT_EQ(StateText(Job("ended", kMillisecond, 3600 * kSecond)), "ended");
}

TEST(JobState, RanksThatHaveNotJoinedMakeItWait) {
  v1::JobInfo job = Job("running", 0, 0);
  job.add_workers()->set_state("awaited");
  EXPECT_EQ(StateText(job), "waiting");
  job.set_state("failed");
  EXPECT_EQ(StateText(job), "failed");
}

TEST(JobState, CoreLoopsAreGroupedByTheWayOfTheirSums) {
  using Ways = std::vector<std::pair<std::string, std::string>>;
  v1::JobInfo job = Job("running", 0, 0);
  EXPECT_EQ(CoresBySumWay(job), Ways{});
  job.add_sum_ways("aggregator a");
  EXPECT_EQ(CoresBySumWay(job), (Ways{{"aggregator a", "0"}}));
  job.add_sum_ways("aggregator a");
  EXPECT_EQ(CoresBySumWay(job), (Ways{{"aggregator a", "0, 1"}}));
  for (const char* way : {"tcp: b is gone", "aggregator a", "aggregator a", "aggregator a",
                          "tcp: b is gone", "aggregator c"})
    job.add_sum_ways(way);
  EXPECT_EQ(
      CoresBySumWay(job),
      (Ways{{"aggregator a", "0, 1, 3-5"}, {"tcp: b is gone", "2, 6"}, {"aggregator c", "7"}}));
}

TEST(JobState, Texts) {
  EXPECT_EQ(IterationText(Job("running", 0, 0)), "-");
  EXPECT_EQ(IterationTimeText(Job("running", 0, 0)), "-");
  EXPECT_EQ(IterationText(Job("running", kMillisecond, 0)), "1200");
}

}  // namespace
}  // namespace phub::client::cli
