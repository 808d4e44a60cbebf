#include "common/http/text_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/support/prometheus_text.h"

namespace phub::server {
namespace {

using http::TextFormat;

using phub::testing::ReadPrometheusText;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Type = TextFormat::Type;

TEST(TextFormat, FamiliesHaveHelpTypeAndSamples) {
  TextFormat text;
  text.BeginFamily("phub_things_total", Type::kCounter, "Things.");
  text.Add(3, {{"core", "0"}});
  text.Add(4, {{"core", "1"}, {"reason", ""}});
  text.BeginFamily("phub_age_seconds", Type::kGauge, "Age.");
  text.AddSeconds(2'500'000);
  EXPECT_EQ(text.Take(),
            "# HELP phub_things_total Things.\n"
            "# TYPE phub_things_total counter\n"
            "phub_things_total{core=\"0\"} 3\n"
            "phub_things_total{core=\"1\"} 4\n"
            "# HELP phub_age_seconds Age.\n"
            "# TYPE phub_age_seconds gauge\n"
            "phub_age_seconds 0.0025\n");
}

TEST(TextFormat, WhateverANameHoldsStaysInsideItsQuotes) {
  const std::string name = "a\"b\\c\nd{e}=\xC3\xA9 ,";
  TextFormat text;
  text.BeginFamily("phub_jobs", Type::kGauge, "Say \"jobs\"\nand \\.");
  text.Add(1, {{"job", name}});
  const std::string written = text.Take();
  const auto read = ReadPrometheusText(written);
  EXPECT_THAT(read.problems, IsEmpty()) << written;
  EXPECT_EQ(read.families.at("phub_jobs").samples.at(0).labels.at("job"), name);
}

TEST(TextFormat, SecondsAreExact) {
  TextFormat text;
  text.BeginFamily("phub_a_seconds", Type::kGauge, "A.");
  text.AddSeconds(0, {{"core", "0"}});
  text.AddSeconds(1, {{"core", "1"}});
  text.AddSeconds(123'456'789'012'345'678, {{"core", "2"}});
  const std::string written = text.Take();
  EXPECT_THAT(written, HasSubstr("{core=\"0\"} 0\n"));
  EXPECT_THAT(written, HasSubstr("{core=\"1\"} 0.000000001\n"));
  EXPECT_THAT(written, HasSubstr("{core=\"2\"} 123456789.012345678\n"));
}

TEST(TextFormat, HistogramsAddUp) {
  const std::array<DurationNs, 2> bounds = {kMillisecond, kSecond};
  const std::array<std::uint64_t, 3> counts = {5, 0, 2};
  TextFormat text;
  text.BeginFamily("phub_round_seconds", Type::kHistogram, "Rounds.");
  text.AddHistogram({bounds.data(), counts.data(), bounds.size(), 3'000'000'000},
                    {{"job", "digits"}});
  const std::string written = text.Take();
  EXPECT_THAT(ReadPrometheusText(written).problems, IsEmpty()) << written;
  EXPECT_THAT(written, HasSubstr("_bucket{job=\"digits\",le=\"0.001\"} 5\n"));
  EXPECT_THAT(written, HasSubstr("_bucket{job=\"digits\",le=\"+Inf\"} 7\n"));
  EXPECT_THAT(written, HasSubstr("_sum{job=\"digits\"} 3\n"));
}

// The reader that other tests rely on detects invalid text.
TEST(PrometheusText, FindsWhatIsWrong) {
  const std::string head = "# HELP phub_a_total A.\n# TYPE phub_a_total counter\n";
  const auto problems = [](const std::string& text) { return ReadPrometheusText(text).problems; };
  EXPECT_THAT(problems(head + "phub_a_total 1\n"), IsEmpty());
  for (const std::string& wrong : {
           head + "phub_a_total 1",                                         // no newline
           head + "phub_a_total -1\n",                                      // not a counter's value
           head + "phub_b_total 1\n",                                       // no such family
           head + "phub_a_total 1\nphub_a_total 1\n",                       // a duplicate series
           head + "phub_a_total{x=\"1} 1\n",                                // unterminated
           head + "phub_a_total{x=\"\\t\"} 1\n",                            // unknown escape
           head + head,                                                     // a duplicate family
           std::string("# HELP phub_a A.\n# TYPE phub_a counter\n"),        // no _total
           std::string("# HELP phub_a_total \n# TYPE phub_a_total gauge"),  // no help
           std::string("# HELP phub_a_ms A.\n# TYPE phub_a_ms gauge\n"),    // no base unit
           std::string("phub_a 1\n"),
       }) {
    EXPECT_THAT(problems(wrong), Not(IsEmpty())) << wrong;
  }
  const std::string histogram = "# HELP phub_h H.\n# TYPE phub_h histogram\n";
  EXPECT_THAT(problems(histogram + "phub_h_bucket{le=\"1\"} 2\nphub_h_bucket{le=\"+Inf\"} 1\n"
                                   "phub_h_sum 1\nphub_h_count 1\n"),
              Contains(HasSubstr("less than a smaller one")));
  EXPECT_THAT(problems(histogram + "phub_h_bucket{le=\"1\"} 2\nphub_h_sum 1\nphub_h_count 2\n"),
              Contains(HasSubstr("no +Inf")));
}

}  // namespace
}  // namespace phub::server
