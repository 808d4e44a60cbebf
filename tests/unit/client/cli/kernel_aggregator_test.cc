#include "client/cli/kernel_aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace phub::client::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Level = transport::LaneFinding::Level;

// A host whose /proc and /sys are files of the test.
class KernelAggregator : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = folder_.path() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void SetUp() override {
    Write("/proc/sys/net/core/bpf_jit_enable", "1\n");
    Write("/proc/self/status", "Name:\tphubctl\nCapPrm:\t0\nCapEff:\t000000c000001000\n");
    Write("/sys/class/net/eth1/mtu", "1500\n");
    Write("/sys/class/net/eth1/operstate", "up\n");
  }
  std::vector<transport::LaneFinding> Find() {
    return KernelAggregatorFindings("eth1", folder_.path());
  }
  const TemporaryFolder folder_;
};

TEST_F(KernelAggregator, AHostThatFitsHasNothingToDo) {
  const auto findings = Find();
  ASSERT_EQ(findings.size(), 2u);
  for (const auto& finding : findings) {
    EXPECT_EQ(finding.level, Level::kGood) << finding.text;
    EXPECT_THAT(finding.fix, IsEmpty());
  }
}

TEST_F(KernelAggregator, MissingCapabilitiesAreNamed) {
  Write("/proc/self/status", "CapEff:\t0000004000000000\n");
  const auto findings = Find();
  EXPECT_EQ(findings[0].level, Level::kBad);
  EXPECT_THAT(findings[0].text, HasSubstr("lacks CAP_NET_ADMIN, CAP_BPF, which"));
  EXPECT_THAT(findings[0].text, Not(HasSubstr("CAP_PERFMON")));
  EXPECT_THAT(findings[0].fix, HasSubstr("AmbientCapabilities="));
}

TEST_F(KernelAggregator, TheInterfaceIsChecked) {
  Write("/sys/class/net/eth1/operstate", "down\n");
  Write("/sys/class/net/eth1/mtu", "9000\n");
  const auto findings = Find();
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[1].level, Level::kBad);
  EXPECT_EQ(findings[1].fix, "ip link set eth1 up");
  EXPECT_EQ(findings[2].level, Level::kAdvice);
  EXPECT_THAT(findings[2].text, HasSubstr("MTU of 9000"));
  for (const char* absent : {"eth9", "../net/eth1"}) {
    const auto of_absent = KernelAggregatorFindings(absent, folder_.path());
    EXPECT_EQ(of_absent.back().level, Level::kBad) << absent;
    EXPECT_THAT(of_absent.back().text, HasSubstr("there is no network interface")) << absent;
  }
}

TEST_F(KernelAggregator, AKernelWithoutBpfOrWithoutItsCompilerIsReported) {
  Write("/proc/sys/net/core/bpf_jit_enable", "0\n");
  EXPECT_EQ(Find()[0].level, Level::kAdvice);
  std::filesystem::remove(folder_.path() + "/proc/sys/net/core/bpf_jit_enable");
  EXPECT_EQ(Find()[0].level, Level::kBad);
  EXPECT_THAT(Find()[0].text, HasSubstr("no BPF"));
}

}  // namespace
}  // namespace phub::client::cli
