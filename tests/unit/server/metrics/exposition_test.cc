#include "server/metrics/exposition.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/transport/verbs/verbs_counters.h"
#include "server/control/counters.h"
#include "tests/support/prometheus_text.h"

namespace phub::server {
namespace {

using phub::testing::PrometheusText;
using phub::testing::ReadPrometheusText;
using ::testing::IsEmpty;

// Every counter has a distinct value: those of core loops from 100 and 200, control's from 1000.
MetricsSample MakeSample() {
  MetricsSample sample;
  sample.version = "0.1.0";
  sample.commit = "0123456789ab";
  sample.simd_target = "AVX2";
  sample.uptime = 90 * kSecond;
  sample.cores.resize(2);
  for (std::size_t core = 0; core < 2; ++core) {
    for (std::size_t i = 0; i < kCoreCounterCount; ++i) {
      sample.cores[core].counters[i] = (core + 1) * 100 + i;
    }
    for (std::size_t i = 0; i < transport::kVerbsCounterFields.size(); ++i) {
      const transport::VerbsCounterField& field = transport::kVerbsCounterFields[i];
      sample.cores[core].transport_counts.push_back(
          {field.name, field.help, (core + 1) * 10000 + i});
    }
  }
  for (std::size_t i = 0; i < kControlCounterCount; ++i) {
    sample.control_counters.push_back(1000 + i);
  }
  JobSample job;
  job.tenant = "default";
  job.job = "dig\"its";
  job.workers = {.awaited = 1, .live = 2, .lost = 3};
  job.totals.gradient_bytes = 1 << 20;
  job.totals.round_duration_buckets[3] = 7;
  job.totals.round_duration_buckets[kRoundDurationBuckets - 1] = 1;
  job.totals.round_duration_ns = 12 * kSecond;
  job.totals.straggler_wait_ns = 1500 * kMillisecond;
  sample.jobs = {job};
  sample.tenants = {{"default", job.totals, 1, 2, 4096, 8192, 0, {{"jobs", 4, 3}}}};
  sample.jobs_omitted = 5;
  sample.groups = {{"default", "dig\"its", "pi\\pe", 3, job.totals}};
  sample.groups_omitted = 7;
  TurnTimes& calls = sample.turn_times[static_cast<std::size_t>(TurnKind::kCall)];
  calls.Add(20 * kMicrosecond);
  calls.Add(3 * kSecond);
  return sample;
}

PrometheusText Write(const MetricsSample& sample, std::string* text = nullptr) {
  const std::string written = WriteExposition(sample, ReadProcessSample(), {{{200, 4}}, 1});
  if (text != nullptr) *text = written;
  return ReadPrometheusText(written);
}

TEST(Exposition, IsWhatPrometheusReadsAndPromtoolPraises) {
  std::string text;
  const PrometheusText read = Write(MakeSample(), &text);
  EXPECT_THAT(read.problems, IsEmpty()) << text;
}

TEST(Exposition, EveryCounterHasAFamilyWithHelp) {
  for (const char* name : kCoreCounterNames) {
    if (std::string_view(name) == "busy_ns") continue;
    EXPECT_FALSE(HelpOf(FamilyOf(name).name).empty())
        << name << ": say in server/metrics/counter_help.cc what it counts";
  }
  for (const transport::VerbsCounterField& field : transport::kVerbsCounterFields) {
    EXPECT_FALSE(std::string_view(field.help).empty()) << field.name;
    EXPECT_TRUE(FamilyOf(field.name).reason.empty()) << field.name << ": its cores are told apart";
  }
  for (const char* name : kControlCounterNames) {
    EXPECT_FALSE(HelpOf(FamilyOf(name).name).empty())
        << name << ": say in server/metrics/counter_help.cc what it counts";
  }
}

TEST(Exposition, NoCounterIsLost) {
  const MetricsSample sample = MakeSample();
  const PrometheusText read = Write(sample);
  for (std::size_t i = 0; i < kCoreCounterCount; ++i) {
    if (static_cast<CoreCounter>(i) == CoreCounter::busy_ns) continue;
    const CounterFamily family = FamilyOf(kCoreCounterNames[i]);
    const std::string name = fmt::format("phub_{}_total", family.name);
    if (!family.reason.empty()) {
      EXPECT_EQ(read.Sum(name, {{"reason", family.reason}}), 300 + 2.0 * static_cast<double>(i));
      continue;
    }
    EXPECT_EQ(read.Sum(name, {{"core", "0"}}), 100 + static_cast<double>(i)) << name;
    EXPECT_EQ(read.Sum(name, {{"core", "1"}}), 200 + static_cast<double>(i)) << name;
  }
  for (std::size_t i = 0; i < transport::kVerbsCounterFields.size(); ++i) {
    const std::string name = fmt::format("phub_{}_total", transport::kVerbsCounterFields[i].name);
    EXPECT_EQ(read.Sum(name, {{"core", "0"}}), 10000 + static_cast<double>(i)) << name;
    EXPECT_EQ(read.Sum(name, {{"core", "1"}}), 20000 + static_cast<double>(i)) << name;
  }
  for (std::size_t i = 0; i < kControlCounterCount; ++i) {
    const CounterFamily family = FamilyOf(kControlCounterNames[i]);
    std::map<std::string, std::string> labels;
    if (!family.reason.empty()) labels["reason"] = family.reason;
    EXPECT_EQ(read.Sum(fmt::format("phub_{}_total", family.name), labels),
              1000 + static_cast<double>(i))
        << kControlCounterNames[i];
  }
}

TEST(Exposition, ReasonsAreALabel) {
  EXPECT_EQ(FamilyOf("joins_refused_rank_held").name, "joins_refused");
  EXPECT_EQ(FamilyOf("joins_refused_rank_held").reason, "rank_held");
  EXPECT_EQ(FamilyOf("refused_stale").name, "messages_refused");
  EXPECT_EQ(FamilyOf("refused_stale").reason, "stale");
  EXPECT_EQ(FamilyOf("snapshots_refused").name, "snapshots_refused");
  EXPECT_EQ(FamilyOf("snapshots_refused").reason, "");
}

TEST(Exposition, JobsAndTenantsByName) {
  const PrometheusText read = Write(MakeSample());
  const std::map<std::string, std::string> job = {{"tenant", "default"}, {"job", "dig\"its"}};
  EXPECT_EQ(read.Sum("phub_job_gradient_bytes_total", job), 1 << 20);
  EXPECT_EQ(read.Sum("phub_job_straggler_wait_seconds_total", job), 1.5);
  EXPECT_EQ(read.Sum("phub_job_round_duration_seconds_count", job), 8);
  EXPECT_EQ(read.Sum("phub_job_round_duration_seconds_sum", job), 12);
  EXPECT_EQ(read.Sum("phub_tenant_memory_quota_bytes", {{"tenant", "default"}}), 8192);
  const std::map<std::string, std::string> jobs = {{"tenant", "default"}, {"quota", "jobs"}};
  EXPECT_EQ(read.Sum("phub_tenant_grant", jobs), 4);
  EXPECT_EQ(read.Sum("phub_tenant_grant_used", jobs), 3);
  EXPECT_EQ(read.Sum("phub_tenant_rounds_total", {{"tenant", "default"}}), 8);
  EXPECT_EQ(read.Sum("phub_metrics_omitted", {{"kind", "job"}}), 5);
  EXPECT_EQ(read.Sum("phub_metrics_omitted", {{"kind", "group"}}), 7);
  std::map<std::string, std::string> group = job;
  group["group"] = "pi\\pe";
  group["id"] = "3";
  EXPECT_EQ(read.Sum("phub_group_gradient_bytes_total", group), 1 << 20);
  EXPECT_EQ(read.Sum("phub_group_rounds_total", group), 8);
  EXPECT_EQ(read.Sum("phub_group_round_seconds_total", group), 12);
  EXPECT_EQ(read.Sum("phub_group_straggler_wait_seconds_total", group), 1.5);
  std::map<std::string, std::string> lost = job;
  lost["state"] = "lost";
  EXPECT_EQ(read.Sum("phub_job_workers", lost), 3);
}

TEST(Exposition, HowLongControlsLockWasHeld) {
  const PrometheusText read = Write(MakeSample());
  EXPECT_EQ(read.Sum("phub_control_lock_seconds_count", {{"by", "call"}}), 2);
  EXPECT_EQ(read.Sum("phub_control_lock_seconds_bucket", {{"by", "call"}, {"le", "0.001"}}), 1);
  EXPECT_EQ(read.Sum("phub_control_lock_seconds_sum", {{"by", "call"}}), 3.00002);
  EXPECT_EQ(read.Sum("phub_control_lock_seconds_count", {{"by", "poll"}}), 0);
}

TEST(Exposition, WithoutJobsItIsStillRight) {
  MetricsSample sample = MakeSample();
  sample.jobs.clear();
  sample.tenants.clear();
  EXPECT_THAT(Write(sample).problems, IsEmpty());
}

TEST(Exposition, TheManualListsEveryMetric) {
  std::ifstream file(PHUB_TEST_OPERATIONS);
  std::ostringstream manual;
  manual << file.rdbuf();
  std::vector<std::string> missing;
  for (const auto& [name, family] : Write(MakeSample()).families) {
    const std::string start = fmt::format("| `{}` | {} | ", name, family.type);
    const std::size_t at = manual.str().find(start);
    const std::string row = manual.str().substr(std::min(at, manual.str().size()));
    const std::string end = fmt::format(" | {} |", family.help);
    if (!row.substr(0, row.find('\n')).ends_with(end)) missing.push_back(start + "..." + end);
  }
  EXPECT_THAT(missing, IsEmpty()) << "rows that docs/operations.md has to have";
}

TEST(RoundDuration, BucketsEndAtTheirBounds) {
  EXPECT_EQ(RoundDurationBucket(0), 0u);
  EXPECT_EQ(RoundDurationBucket(25 * kMicrosecond), 0u);
  EXPECT_EQ(RoundDurationBucket(25 * kMicrosecond + 1), 1u);
  EXPECT_EQ(RoundDurationBucket(10 * kSecond), kRoundDurationBuckets - 2);
  EXPECT_EQ(RoundDurationBucket(10 * kSecond + 1), kRoundDurationBuckets - 1);
  EXPECT_TRUE(std::is_sorted(kRoundDurationBounds.begin(), kRoundDurationBounds.end()));
}

TEST(ProcessSample, IsOfThisProcess) {
  const ProcessSample sample = ReadProcessSample();
  EXPECT_GT(sample.resident_bytes, 1u << 20);
  EXPECT_GT(sample.open_descriptors, 2u);
  EXPECT_GT(sample.descriptors_max, sample.open_descriptors);
}

}  // namespace
}  // namespace phub::server
