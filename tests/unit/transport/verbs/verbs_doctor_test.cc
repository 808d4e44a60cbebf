// Findings on hosts that are not set up correctly: each names the problem, and the command that
// fixes it.
#include "common/transport/verbs/verbs_doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "common/base/units.h"
#include "common/transport/verbs/verbs_device.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Level = VerbsFinding::Level;

GidEntry Address(const char* text, std::uint32_t index = 1) {
  return {.index = index, .type = GidType::kRoceV2, .gid = ParseGid(text).value()};
}

VerbsHostFacts GoodHost() {
  VerbsHostFacts facts;
  facts.kernel_support = true;
  facts.transparent_huge_pages = "madvise";
  facts.devices = {{.name = "mlx5_0",
                    .file = "/dev/infiniband/uverbs0",
                    .open_error = 0,
                    .windows = true,
                    .ports = {{.number = 1,
                               .state = "PORT_ACTIVE",
                               .active = true,
                               .ethernet = true,
                               .mtu_bytes = 4096,
                               .mtu_bytes_max = 4096,
                               .interface = "eth7",
                               .gids = {Address("10.0.0.5")}}}}};
  return facts;
}

// The only finding that is not good; its level must be `level`.
VerbsFinding Only(const VerbsHostFacts& facts, Level level, const VerbsNeeds& needs = {}) {
  std::vector<VerbsFinding> findings = JudgeVerbs(facts, needs);
  std::erase_if(findings, [](const VerbsFinding& each) { return each.level == Level::kGood; });
  EXPECT_EQ(findings.size(), 1u);
  if (findings.size() != 1) return {};
  EXPECT_STREQ(ToString(findings[0].level), ToString(level)) << findings[0].text;
  EXPECT_FALSE(findings[0].fix.empty());
  return findings[0];
}

TEST(VerbsDoctor, NothingIsWrongWithAGoodHost) {
  const VerbsHostFacts facts = GoodHost();
  for (const VerbsFinding& finding : JudgeVerbs(facts, {.pinned_bytes = kGibibyte})) {
    EXPECT_EQ(finding.level, Level::kGood) << finding.subject << ": " << finding.text;
    EXPECT_THAT(finding.fix, IsEmpty());
  }
  EXPECT_EQ(UsableVerbsDevices(facts, {}), 1u);
}

TEST(VerbsDoctor, HostWithoutDevicesIsInOrderAndSaysSo) {
  const std::vector<VerbsFinding> findings = JudgeVerbs({}, {.pinned_bytes = kGibibyte});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kGood);
  EXPECT_THAT(findings[0].text, HasSubstr("no RDMA devices"));
  EXPECT_EQ(UsableVerbsDevices({}, {}), 0u);
}

TEST(VerbsDoctor, WithoutTheLibraryADriverIsOfNoUse) {
  VerbsHostFacts facts;
  facts.library_problem = "libibverbs.so.1: cannot open shared object file";
  EXPECT_EQ(JudgeVerbs(facts, {})[0].level, Level::kGood);
  facts.kernel_support = true;
  const VerbsFinding finding = Only(facts, Level::kBad);
  EXPECT_THAT(finding.text, HasSubstr("libibverbs.so.1: cannot open shared object file"));
  EXPECT_THAT(finding.fix, HasSubstr("libibverbs1"));
}

TEST(VerbsDoctor, DeviceFileThatIsNotOurs) {
  VerbsHostFacts facts = GoodHost();
  facts.devices[0].open_error = EACCES;
  const VerbsFinding finding = Only(facts, Level::kBad);
  EXPECT_THAT(finding.text, HasSubstr("/dev/infiniband/uverbs0 cannot be opened"));
  EXPECT_THAT(finding.fix, HasSubstr("/etc/udev/rules.d"));
  EXPECT_EQ(UsableVerbsDevices(facts, {}), 0u);
}

TEST(VerbsDoctor, PortThatIsDownNamesItsInterface) {
  VerbsHostFacts facts = GoodHost();
  facts.devices[0].ports[0].active = false;
  facts.devices[0].ports[0].state = "PORT_DOWN";
  const VerbsFinding finding = Only(facts, Level::kBad);
  EXPECT_EQ(finding.subject, "mlx5_0 port 1");
  EXPECT_THAT(finding.text, HasSubstr("PORT_DOWN"));
  EXPECT_THAT(finding.fix, HasSubstr("ip link set eth7 up"));
  EXPECT_EQ(UsableVerbsDevices(facts, {}), 0u);
}

TEST(VerbsDoctor, AddressesThatAreMissingOrReachLittle) {
  VerbsHostFacts facts = GoodHost();
  facts.devices[0].ports[0].gids.clear();
  EXPECT_THAT(Only(facts, Level::kBad).fix, HasSubstr("ip address add ADDRESS/LENGTH dev eth7"));
  facts.devices[0].ports[0].gids = {Address("fe80::1")};
  EXPECT_THAT(Only(facts, Level::kAdvice).text, HasSubstr("only its own link"));
  facts.devices[0].ports[0].gids = {Address("10.0.0.5")};
  facts.devices[0].ports[0].gids[0].type = GidType::kRoceV1;
  EXPECT_THAT(Only(facts, Level::kAdvice).text, HasSubstr("RoCE v1"));
}

TEST(VerbsDoctor, SmallMtu) {
  VerbsHostFacts facts = GoodHost();
  facts.devices[0].ports[0].mtu_bytes = 1024;
  EXPECT_THAT(Only(facts, Level::kAdvice).fix, HasSubstr("ip link set eth7 mtu 4200"));
  facts.devices[0].ports[0].mtu_bytes_max = 1024;  // the port supports no larger one
  EXPECT_EQ(std::ranges::count(JudgeVerbs(facts, {}), Level::kGood, &VerbsFinding::level),
            static_cast<std::ptrdiff_t>(JudgeVerbs(facts, {}).size()));
}

TEST(VerbsDoctor, PinnedMemoryAgainstWhatIsNeeded) {
  VerbsHostFacts facts = GoodHost();
  facts.pinned_bytes_max = facts.pinned_bytes_max_hard = 8 * kMebibyte;
  const VerbsNeeds needs{.pinned_bytes = kGibibyte};
  const VerbsFinding finding = Only(facts, Level::kBad, needs);
  EXPECT_THAT(finding.text, HasSubstr("allows 8 MiB, 1 GiB are needed"));
  EXPECT_THAT(finding.fix, HasSubstr("LimitMEMLOCK=infinity"));
  facts.pinned_bytes_max_hard = kUnlimitedBytes;
  EXPECT_EQ(Only(facts, Level::kBad, needs).fix, "ulimit -l unlimited");
  facts.in_slurm_job = true;
  EXPECT_THAT(Only(facts, Level::kBad, needs).fix,
              HasSubstr("PropagateResourceLimitsExcept=MEMLOCK"));
  facts.may_exceed_limit = true;
  EXPECT_EQ(std::ranges::count(JudgeVerbs(facts, needs), Level::kBad, &VerbsFinding::level), 0);
}

TEST(VerbsDoctor, HugePagesThatAreOff) {
  VerbsHostFacts facts = GoodHost();
  facts.transparent_huge_pages = "never";
  EXPECT_THAT(Only(facts, Level::kAdvice).fix, HasSubstr("transparent_hugepage/enabled"));
}

// A port that the doctor calls usable is one that lanes use.
TEST(VerbsDoctor, AgreesWithTheChoiceOfAPort) {
  fake_verbs::Reset();
  fake_verbs::TheDevice().bare_first_port = true;
  const VerbsHostFacts facts = ReadVerbsHostFacts();
  ASSERT_EQ(facts.devices.size(), 1u);
  ASSERT_EQ(facts.devices[0].ports.size(), 2u);
  EXPECT_TRUE(facts.devices[0].ports[0].gids.empty());
  EXPECT_EQ(UsableVerbsDevices(facts, {.daemon = true}), 1u);
  const auto device = VerbsDevice::Open({});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->port(), 2);
  EXPECT_EQ(VerbsDevice::Open({.port = 1}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(VerbsDoctor, WindowsMatterToTheDaemon) {
  VerbsHostFacts facts = GoodHost();
  facts.devices[0].windows = false;
  Only(facts, Level::kAdvice);
  Only(facts, Level::kBad, {.daemon = true});
  EXPECT_EQ(UsableVerbsDevices(facts, {}), 1u);
  EXPECT_EQ(UsableVerbsDevices(facts, {.daemon = true}), 0u);
}

}  // namespace
}  // namespace phub::transport
