#include "server/core_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/cpu_topology.h"
#include "common/base/status_text.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

CpuTopology Machine() {
  auto topology = CpuTopology::Create();
  EXPECT_TRUE(topology.ok());
  return *topology;
}

TEST(CorePlan, AutoIsAQuarterOfTheCoresOrTwoNeverPinned) {
  Settings settings;
  settings.cores = "auto";
  const auto plan = PlanCores(settings, Machine());
  ASSERT_TRUE(plan.ok());
  const std::size_t usable = Machine().cores().size();
  EXPECT_EQ(plan->loop_count(),
            std::clamp<std::size_t>(usable / 4, std::min<std::size_t>(usable, 2), 8));
  EXPECT_FALSE(plan->pinned());
  EXPECT_EQ(plan->waiting, CorePlan::Waiting::kBlock);
  EXPECT_EQ(plan->PinsText(), "none");
}

TEST(CorePlan, AListIsPinnedAndPolls) {
  const std::uint32_t core = Machine().cores().front().os_index;
  Settings settings;
  settings.cores = fmt::format("{0}-{0}", core);
  const auto plan = PlanCores(settings, Machine());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pins, std::vector<std::optional<std::uint32_t>>{core});
  EXPECT_EQ(plan->waiting, CorePlan::Waiting::kPollThenBlock);
  settings.pin = PinMode::kOff;
  const auto unpinned = PlanCores(settings, Machine());
  ASSERT_TRUE(unpinned.ok());
  EXPECT_FALSE(unpinned->pinned());
  EXPECT_EQ(unpinned->waiting, CorePlan::Waiting::kBlock);
}

TEST(CorePlan, ANumberIsPinnedOnlyIfTwoMoreCoresAreUsable) {
  const std::size_t usable = Machine().cores().size();
  Settings settings;
  settings.cores = std::to_string(usable);
  const auto all = PlanCores(settings, Machine());
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->loop_count(), usable);
  EXPECT_FALSE(all->pinned());
  settings.pin = PinMode::kOn;
  EXPECT_TRUE(PlanCores(settings, Machine())->pinned());
  settings.cores = "1";
  settings.pin = PinMode::kAuto;
  EXPECT_EQ(PlanCores(settings, Machine())->pinned(), usable >= 3);
}

TEST(CorePlan, RefusalsSayWhichCoresAreUsable) {
  Settings settings;
  settings.cores = "4000-4000";
  const auto foreign = PlanCores(settings, Machine());
  ASSERT_FALSE(foreign.ok());
  EXPECT_THAT(std::string(MessageOf(foreign.status())), HasSubstr("has core 4000"));
  EXPECT_THAT(std::string(MessageOf(foreign.status())), HasSubstr("usable cores: "));
  settings.cores = "257";
  EXPECT_FALSE(PlanCores(settings, Machine()).ok());
  settings.cores = std::to_string(Machine().cores().size() + 1);
  settings.pin = PinMode::kOn;
  EXPECT_FALSE(PlanCores(settings, Machine()).ok());
}

TEST(CorePlan, WaitIsTheUsersIfSaid) {
  Settings settings;
  settings.cores = "1";
  settings.wait = WaitMode::kPoll;
  EXPECT_EQ(PlanCores(settings, Machine())->waiting, CorePlan::Waiting::kPoll);
  settings.wait = WaitMode::kBlock;
  EXPECT_EQ(PlanCores(settings, Machine())->waiting, CorePlan::Waiting::kBlock);
}

}  // namespace
}  // namespace phub::server
