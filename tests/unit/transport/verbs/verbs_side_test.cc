// A worker's memory and the devices of its host.
#include "common/transport/verbs/verbs_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "common/transport/region_address.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::transport {
namespace {

using ::testing::HasSubstr;
using Use = RegisteredMemory::Use;

bool Knows(const VerbsDomain& domain, const std::array<std::byte, 64>& memory) {
  std::uint32_t hint = 0;
  return domain.Find(memory.data(), memory.size(), hint) != kNoRegionIndex;
}

TEST(VerbsSide, DeviceThatTakesOverKnowsTheMemoryOfAllKeys) {
  fake_verbs::Reset();
  fake_verbs::TheDevice().second_device = true;
  std::array<std::byte, 64> before{};
  std::array<std::byte, 64> between{};
  std::array<std::byte, 64> after{};
  VerbsSide side("10.0.0.1");
  side.Register(before.data(), before.size(), Use::kSend);  // no lane uses a device yet
  EXPECT_EQ(fake_verbs::TheDevice().regions, 0u);
  const auto first = side.WayTo("10.0.0.1", 0, 0);
  ASSERT_TRUE(first.ok());
  side.Register(between.data(), between.size(), Use::kReceive);
  EXPECT_TRUE(Knows(*first->domain, before));
  EXPECT_TRUE(Knows(*first->domain, between));
  EXPECT_EQ(fake_verbs::TheDevice().regions, 2u);  // devices without lanes pin nothing

  first->queue->Break("a test", EIO);
  const auto second = side.WayTo("10.0.0.1", 0, 0);
  ASSERT_TRUE(second.ok());
  ASSERT_NE(second->queue, first->queue);
  side.Register(after.data(), after.size(), Use::kSend);
  for (const auto* memory : {&before, &between, &after}) {
    EXPECT_TRUE(Knows(*second->domain, *memory));
  }
  second->queue->Break("a test", EIO);
  EXPECT_THAT(std::string(side.WayTo("10.0.0.1", 0, 0).status().message()),
              HasSubstr("was lost while the job ran"));
}

std::string NameOf(const absl::StatusOr<VerbsSide::Way>& way) {
  return way.ok() ? way->queue->device()->name() : std::string(way.status().message());
}

TEST(VerbsSide, NearestDeviceIsFirstUnlessTheHostNamesThemInTurn) {
  fake_verbs::Reset();
  fake_verbs::TheDevice().second_device = true;
  VerbsSide side("10.0.1.7");  // fake1 has 10.0.1.1
  for (const std::uint32_t core : {0u, 1u}) {
    EXPECT_EQ(NameOf(side.WayTo("10.0.1.7", core, 0)), "fake1");
    EXPECT_EQ(NameOf(side.WayTo("10.0.1.7", core, 1)), "fake0");
  }
  ASSERT_EQ(setenv("PHUB_VERBS_DEVICES", "fake0,fake1", 1), 0);
  VerbsSide named("10.0.1.7");
  ASSERT_EQ(unsetenv("PHUB_VERBS_DEVICES"), 0);
  for (const std::uint32_t core : {0u, 1u, 2u}) {
    EXPECT_EQ(NameOf(named.WayTo("10.0.1.7", core, 0)), core == 1 ? "fake1" : "fake0");
    EXPECT_EQ(NameOf(named.WayTo("10.0.1.7", core, 1)), core == 1 ? "fake0" : "fake1");
  }
  named.WayTo("10.0.1.7", 1, 0)->queue->Break("a test", EIO);
  EXPECT_EQ(NameOf(named.WayTo("10.0.1.7", 1, 0)), "fake0");
}

TEST(VerbsSide, UsesWhatTheHostSaysOrSaysWhyNot) {
  fake_verbs::Reset();
  fake_verbs::TheDevice().second_device = true;
  const auto of = [](const char* devices) {
    EXPECT_EQ(setenv("PHUB_VERBS_DEVICES", devices, 1), 0);
    VerbsSide side("10.0.0.1");
    EXPECT_EQ(unsetenv("PHUB_VERBS_DEVICES"), 0);
    return side.queues().empty() ? side.why_not() : side.queues().front()->device()->name();
  };
  EXPECT_EQ(of(""), "fake0");
  EXPECT_EQ(of("fake1:1:1"), "fake1");
  EXPECT_THAT(of("fake2"), HasSubstr("there is no RDMA device fake2; this host has: fake0, fake1"));
  EXPECT_THAT(of("fake1:x"),
              HasSubstr("PHUB_VERBS_DEVICES: 'fake1:x' does not name an RDMA device"));
}

}  // namespace
}  // namespace phub::transport
