#include "client/cli/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "client/cli/output.h"

namespace phub::client::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kColumns = 80;

JobFigures Job(std::uint64_t memory_bytes, std::uint64_t gradient_bytes, DurationNs age) {
  JobFigures job;
  job.state = "running";
  job.world_size = job.live = 128;
  job.memory_bytes = memory_bytes;
  job.gradient_bytes = gradient_bytes;
  job.info.set_state("running");
  job.info.set_iteration(123456);
  job.info.set_iteration_ns(120 * kMillisecond);
  job.info.set_iteration_age_ns(age);
  job.ranks[7] = {.host = "node7.rack3.example", .rounds_last = 0, .straggler_wait_ns = 0};
  return job;
}

// Two samples, two seconds apart: one daemon with 16 core loops, three jobs.
class TopFrameTest : public ::testing::Test {
 protected:
  TopFrameTest() {
    before_.taken_at = kSecond;
    DaemonFigures& daemon = before_.daemons["daemon-with-a-long-name.example:7700"];
    daemon.server.set_state("serving");
    daemon.server.set_memory_bytes_max(std::uint64_t{1} << 40);
    daemon.busy_ns.assign(16, 0);
    before_.tenants["acme"] = {.jobs = 3, .live_workers = 384, .memory_quota_bytes = 1 << 30};
    before_.jobs[{"acme", "a-rather-long-name-of-a-job"}] = Job(1 << 20, 0, kMillisecond);
    before_.jobs[{"acme", "large"}] = Job(1 << 30, 0, kMillisecond);
    before_.jobs[{"zeta", "stuck"}] = Job(1 << 10, 0, 60 * kSecond);
    after_ = before_;
    after_.taken_at = 3 * kSecond;
    for (auto& [name, job] : after_.jobs) {
      job.ranks[7].rounds_last = 100;
      job.ranks[7].straggler_wait_ns = 100 * kMillisecond;
      job.rounds = 200;
    }
    after_.jobs[{"acme", "a-rather-long-name-of-a-job"}].gradient_bytes = 1 << 30;
    for (auto& busy : after_.daemons.begin()->second.busy_ns) busy = kSecond;
  }

  std::string Text(std::size_t columns, TopOrder order, bool highlight = false) const {
    return TopFrame(before_, after_).Text(columns, order, highlight);
  }

  TopSample before_;
  TopSample after_;
};

TEST_F(TopFrameTest, FitsEveryTerminal) {
  for (const std::size_t columns : {kColumns, std::size_t{60}, std::size_t{200}}) {
    std::istringstream lines(Text(columns, TopOrder::kName));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line;
  }
  const std::string narrow = Text(kColumns, TopOrder::kName);
  EXPECT_THAT(narrow, HasSubstr("acme/a-rather-long-name-of-a-job"));
  EXPECT_THAT(Text(90, TopOrder::kName), HasSubstr("rank 7 100% +1 ms\n"));
  EXPECT_THAT(narrow, HasSubstr("ITERATION"));
  EXPECT_THAT(narrow, HasSubstr("mean 50%, max 50%"));
  EXPECT_THAT(narrow, Not(HasSubstr("ROUNDS/s")));
  const std::string wide = Text(/*columns=*/0, TopOrder::kName);
  EXPECT_THAT(wide, HasSubstr("ROUNDS/s"));
  EXPECT_THAT(wide, HasSubstr("rank 7 100% +1 ms  node7.rack3.example"));
}

// Every number that is shown is whole, at every width.
TEST_F(TopFrameTest, CutsNoNumbers) {
  const auto words = [](const std::string& text) {
    std::istringstream stream(text);
    return std::set<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  const std::set<std::string> all = words(Text(/*columns=*/0, TopOrder::kName));
  for (const std::size_t columns : {120, 80, 70, 60, 50, 45}) {
    const std::string text = Text(columns, TopOrder::kName);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), columns) << line;
    for (const std::string& word : words(text)) {
      const bool is_shortened = word.size() > 3 && word.ends_with("...");
      EXPECT_TRUE(is_shortened || all.contains(word)) << columns << ": " << word;
    }
  }
  const std::string narrow = Text(60, TopOrder::kName);
  EXPECT_THAT(narrow, HasSubstr("128/128     123456\n"));
  EXPECT_THAT(narrow, HasSubstr("mean 50%, max 50%"));
}

TEST_F(TopFrameTest, OrdersJobs) {
  const auto first = [&](TopOrder order) {
    const std::string text = Text(0, order);
    const std::size_t title = text.find("TENANT/JOB");
    const std::size_t row = text.find('\n', title) + 1;
    return text.substr(row, text.find(' ', row) - row);
  };
  EXPECT_EQ(first(TopOrder::kName), "acme/a-rather-long-name-of-a-job");
  EXPECT_EQ(first(TopOrder::kMemory), "acme/large");
  EXPECT_EQ(first(TopOrder::kTraffic), "acme/a-rather-long-name-of-a-job");
  EXPECT_EQ(first(TopOrder::kState), "zeta/stuck");
  TopOrder order = TopOrder::kName;
  for (std::size_t i = 0; i < std::size(kTopOrderNames); ++i) order = NextOrder(order);
  EXPECT_EQ(order, TopOrder::kName);
}

TEST_F(TopFrameTest, MarksStalledJobs) {
  EXPECT_THAT(Text(kColumns, TopOrder::kName), HasSubstr("stalled"));
  EXPECT_THAT(Text(kColumns, TopOrder::kName), Not(HasSubstr("\x1b")));
  const std::string marked = Text(kColumns, TopOrder::kName, /*highlight=*/true);
  EXPECT_THAT(marked, HasSubstr("\n\x1b[7mzeta/stuck"));
  EXPECT_THAT(marked, Not(HasSubstr("\x1b[7macme")));
}

TEST(Table, LeavesOptionalColumnsOutAndCutsLines) {
  Table table({{"NAME"}, {"SIZE", Table::Align::kRight, 1}, {"AGE", Table::Align::kRight, 2}});
  table.Add({"größe", "10", "3 s"});
  EXPECT_EQ(table.Text(), "NAME   SIZE  AGE\ngröße    10  3 s\n");
  EXPECT_EQ(table.Text(16), table.Text());
  EXPECT_EQ(table.Text(15), "NAME   SIZE\ngröße    10\n");
  EXPECT_EQ(table.Text(4), "NAME\ngröß\n");
  Table job({{"JOB"}, {"SIZE", Table::Align::kRight}});
  job.Add({"a-rather-lÖng-name", "1234567"});
  EXPECT_EQ(job.Text(24), "JOB                 SIZE\na-rather-lÖn...  1234567\n");
}

}  // namespace
}  // namespace phub::client::cli
