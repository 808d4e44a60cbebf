// The counters of thousands of jobs and tenants in pages.
#include "server/control/admin/stats_pages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/control/counters.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

MetricsSample SampleOf(int jobs, int tenants) {
  MetricsSample sample;
  sample.control_counters.assign(kControlCounterCount, 1);
  for (int i = 0; i < jobs; ++i) {
    JobSample& job = sample.jobs.emplace_back();
    job.tenant = fmt::format("t{:04}", i % tenants);
    job.job = fmt::format("job{}", i);
    job.number = static_cast<std::uint64_t>(10 + 3 * i);
  }
  for (int i = 0; i < tenants; ++i) sample.tenants.emplace_back().tenant = fmt::format("t{:04}", i);
  return sample;
}

struct Pages {
  std::vector<int> sizes;  // counters
  int daemon_counters = 0;
  std::set<std::pair<std::string, std::string>> jobs;  // (tenant, job)
  std::set<std::string> tenants;
  int counters = 0;
};

Pages ReadPages(const MetricsSample& sample, std::uint32_t page_size,
                const std::string& only_tenant = "") {
  Pages pages;
  v1::GetStatsRequest request;
  request.set_page_size(page_size);
  do {
    const auto page = ParseStatsPage(request);
    EXPECT_TRUE(page.ok()) << page.status();
    v1::GetStatsResponse response;
    EXPECT_TRUE(WriteStats(sample, only_tenant, *page, response).ok());
    for (const v1::Counter& counter : response.counters()) {
      ++pages.counters;
      if (counter.tenant().empty()) ++pages.daemon_counters;
      if (counter.name() == "phub_job_slots") {
        EXPECT_TRUE(pages.jobs.insert({counter.tenant(), counter.job()}).second);
      }
      if (counter.name() == "phub_tenant_jobs") {
        EXPECT_TRUE(pages.tenants.insert(counter.tenant()).second);
      }
    }
    pages.sizes.push_back(response.counters_size());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() && pages.sizes.size() < 10'000);
  return pages;
}

TEST(StatsPages, EveryCounterIsOnOnePage) {
  const MetricsSample sample = SampleOf(3000, 2000);
  const Pages whole = ReadPages(sample, 0);
  EXPECT_EQ(whole.sizes.size(), 1u);
  for (const std::uint32_t page_size : {1u, 7u, 1000u, 1'000'000u}) {
    const Pages pages = ReadPages(sample, page_size);
    EXPECT_EQ(pages.counters, whole.counters);
    EXPECT_EQ(pages.daemon_counters, whole.daemon_counters);
    EXPECT_EQ(pages.jobs.size(), 3000u);
    EXPECT_EQ(pages.tenants.size(), 2000u);
    // Expect: a page has no more jobs and tenants than requested, and never more than 1024.
    const std::size_t entries = std::min(page_size, 1024u);
    EXPECT_GE(pages.sizes.size(), 5000u / entries);
    for (std::size_t i = 1; i < pages.sizes.size(); ++i)
      EXPECT_LE(pages.sizes[i], static_cast<int>(11 * entries)) << i;
  }
}

TEST(StatsPages, ATenantReadsItsOwn) {
  const Pages pages = ReadPages(SampleOf(3000, 2000), 1, "t0007");
  EXPECT_EQ(pages.daemon_counters, 0);
  EXPECT_EQ(pages.jobs.size(), 2u);
  EXPECT_EQ(pages.tenants, std::set<std::string>{"t0007"});
  EXPECT_EQ(pages.sizes.size(), 3u);
}

// Jobs end, and tenants come, between the pages.
TEST(StatsPages, APageBeginsAfterJobsAndTenantsThatAreGone) {
  v1::GetStatsRequest request;
  request.set_page_size(2);
  MetricsSample sample = SampleOf(4, 2);
  v1::GetStatsResponse response;
  ASSERT_TRUE(WriteStats(sample, "t0000", *ParseStatsPage(request), response).ok());
  request.set_page_token(response.next_page_token());
  ASSERT_EQ(request.page_token(), "t");
  sample.jobs.clear();
  sample.tenants.front().tenant = "a";
  response.Clear();
  ASSERT_TRUE(WriteStats(sample, "", *ParseStatsPage(request), response).ok());
  EXPECT_EQ(response.counters_size(), 16);
  EXPECT_EQ(response.counters(0).tenant(), "a");
  request.set_page_token("ta");
  response.Clear();
  ASSERT_TRUE(WriteStats(sample, "", *ParseStatsPage(request), response).ok());
  EXPECT_EQ(response.counters_size(), 8);
}

TEST(StatsPages, AWholeListIsCompleteOrRefused) {
  MetricsSample sample = SampleOf(1000, 1);
  v1::GetStatsResponse response;
  for (JobSample& job : sample.jobs) job.job += std::string(2000, 'x');
  const absl::Status status = WriteStats(sample, "", StatsPage(), response);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("request pages (page_size)"));
  // Expect: pages of few jobs.
  EXPECT_EQ(ReadPages(sample, 1000).jobs.size(), 1000u);
}

TEST(StatsPages, ForeignPageTokensAreRefused) {
  for (const char* const token : {"x", "17", "j", "j1x", "jx"}) {
    v1::GetStatsRequest request;
    request.set_page_token(token);
    EXPECT_EQ(ParseStatsPage(request).status().code(), absl::StatusCode::kInvalidArgument) << token;
  }
}

}  // namespace
}  // namespace phub::server
