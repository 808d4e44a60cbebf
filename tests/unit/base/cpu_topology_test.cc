#include "common/base/cpu_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <thread>

#include "common/base/status_text.h"

namespace phub {
namespace {

using ::testing::HasSubstr;

CpuTopology Machine() {
  auto topology = CpuTopology::Create();
  EXPECT_TRUE(topology.ok());
  return *topology;
}

TEST(CoreList, ReadsRangesAndWritesThemBack) {
  const auto list = ParseCoreList("8,0-3");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(*list, (std::vector<std::uint32_t>{0, 1, 2, 3, 8}));
  EXPECT_EQ(FormatCoreList(*list), "0-3,8");
}

TEST(CoreList, RefusesWhatIsNoListByName) {
  for (const char* text :
       {"", "a", "1,", ",1", "3-1", "1,1", "0-2,2", "1-", "-1", "0-4000000000", "4096", "1 2"})
    EXPECT_FALSE(ParseCoreList(text).ok()) << text;
  EXPECT_THAT(std::string(MessageOf(ParseCoreList("3-1").status())), HasSubstr("write 1-3"));
}

TEST(CpuTopology, ListsTheUsableCoresInOrder) {
  const CpuTopology machine = Machine();
  ASSERT_FALSE(machine.cores().empty());
  EXPECT_GE(machine.numa_node_count(), 1u);
  for (std::size_t i = 1; i < machine.cores().size(); ++i)
    EXPECT_LT(machine.cores()[i - 1].os_index, machine.cores()[i].os_index);
  const std::uint32_t first = machine.cores().front().os_index;
  ASSERT_NE(machine.Find(first), nullptr);
  EXPECT_EQ(machine.Find(kCoreOsIndexMax), nullptr);
}

TEST(CpuTopology, ChoosesDistinctCoresUpToAllOfThem) {
  const CpuTopology machine = Machine();
  const auto count = static_cast<std::uint32_t>(machine.cores().size());
  const auto all = machine.Choose(count);
  EXPECT_EQ(std::set<std::uint32_t>(all.begin(), all.end()).size(), count);
  EXPECT_EQ(machine.Choose(1).size(), 1u);
}

TEST(CpuTopology, APinnedThreadRunsOnItsCore) {
  const std::uint32_t core = Machine().cores().back().os_index;
  std::thread([core] {
    ASSERT_TRUE(PinThisThread(core).ok());
    EXPECT_EQ(sched_getcpu(), static_cast<int>(core));
    // The thread's own mask restricts the allowed cores only for this thread.
    EXPECT_FALSE(PinThisThread(kCoreOsIndexMax).ok());
  }).join();
  EXPECT_NE(Machine().Find(core), nullptr);
}

}  // namespace
}  // namespace phub
