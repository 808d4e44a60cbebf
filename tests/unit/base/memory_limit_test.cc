#include "common/base/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace phub {
namespace {

constexpr std::uint64_t kHost = std::uint64_t{24'000'000} * 1024;

class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() { Write("/proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 1 kB\n"); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Expect(std::uint64_t bytes, const std::string& source) {
    const MemoryLimit limit = ReadMemoryLimit(folder_.path());
    EXPECT_EQ(limit.bytes, bytes);
    EXPECT_EQ(limit.source, source);
  }
  TemporaryFolder folder_;
};

TEST_F(MemoryLimitTest, WithoutGroupsItIsTheHosts) { Expect(kHost, "RAM"); }

TEST_F(MemoryLimitTest, Version2) {
  Write("/proc/self/cgroup", "0::/system.slice/phubd.service\n");
  Write("/sys/fs/cgroup/system.slice/phubd.service/memory.max", "max\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
  Expect(1 << 30, "/sys/fs/cgroup/system.slice/memory.max");
  Write("/sys/fs/cgroup/system.slice/phubd.service/memory.max", "268435456\n");
  Expect(256 << 20, "/sys/fs/cgroup/system.slice/phubd.service/memory.max");
}

TEST_F(MemoryLimitTest, Version1) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/x\n5:hugetlb,memory:/docker/1f3a\n0::/docker/1f3a\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/docker/1f3a/memory.limit_in_bytes", "268435456\n");
  Expect(256 << 20, "/sys/fs/cgroup/memory/docker/1f3a/memory.limit_in_bytes");
}

TEST_F(MemoryLimitTest, AContainerSeesItsOwnGroupAtTheTop) {
  Write("/proc/self/cgroup", "5:memory:/docker/of/the/host\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
  Expect(256 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

TEST_F(MemoryLimitTest, NonsenseIsNoLimit) {
  Write("/proc/self/cgroup", "\n::\nx\n0::\n");
  Write("/sys/fs/cgroup/memory.max", "lots\n");
  Expect(kHost, "RAM");
}

TEST(MemoryLimit, ThisMachineHasSome) {
  const MemoryLimit limit = ReadMemoryLimit();
  EXPECT_GT(limit.bytes, std::uint64_t{64} << 20);
  EXPECT_FALSE(limit.source.empty());
}

}  // namespace
}  // namespace phub
