#include "client/cli/scheduling.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace phub::client::cli {
namespace {

using transport::LaneFinding;

class SchedulingTest : public ::testing::Test {
 protected:
  std::vector<LaneFinding> Findings(const std::string& content) const {
    std::ofstream(file_) << content;
    return SchedulingFindings(file_);
  }
  void TearDown() override { std::filesystem::remove(file_); }

  const std::string file_ = ::testing::TempDir() + "sched_autogroup_enabled";
};

TEST_F(SchedulingTest, GroupsBySessionGetAdvice) {
  const std::vector<LaneFinding> findings = Findings("1\n");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, LaneFinding::Level::kAdvice);
  EXPECT_NE(findings[0].fix.find("kernel.sched_autogroup_enabled=0"), std::string::npos);
}

TEST_F(SchedulingTest, ThreadsAreFine) {
  const std::vector<LaneFinding> findings = Findings("0\n");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, LaneFinding::Level::kGood);
}

TEST_F(SchedulingTest, KernelsWithoutTheFeatureAreNotMentioned) {
  EXPECT_TRUE(SchedulingFindings(file_ + ".absent").empty());
  EXPECT_TRUE(Findings("").empty());
}

}  // namespace
}  // namespace phub::client::cli
