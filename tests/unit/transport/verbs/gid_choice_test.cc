#include "common/transport/verbs/gid_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace phub::transport {
namespace {

GidEntry Entry(std::uint32_t index, GidType type, const std::string& address) {
  return {.index = index, .type = type, .gid = *ParseGid(address)};
}

// The GIDs of an mlx5 port: link-local first, each address in both versions of RoCE.
std::vector<GidEntry> Port() {
  return {Entry(0, GidType::kRoceV1, "fe80::1"),     Entry(1, GidType::kRoceV2, "fe80::1"),
          Entry(2, GidType::kRoceV1, "10.1.0.5"),    Entry(3, GidType::kRoceV2, "10.1.0.5"),
          Entry(4, GidType::kRoceV2, "192.168.7.5"), Entry(5, GidType::kRoceV2, "2001:db8::5")};
}

TEST(GidChoice, TakesRoceV2OverIpv4) {
  const auto choice = ChooseGid(Port(), {});
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->entry.index, 3u);
  EXPECT_EQ(choice->reason, "RoCE v2, IPv4");
}

TEST(GidChoice, TakesTheSubnetOfThePeer) {
  const auto choice = ChooseGid(Port(), ParseGid("192.168.7.99"));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->entry.index, 4u);
  EXPECT_THAT(choice->reason, ::testing::HasSubstr("in common with 192.168.7.99"));
  EXPECT_EQ(ChooseGid(Port(), ParseGid("2001:db8::9"))->entry.index, 5u);
}

TEST(GidChoice, TakesLinkLocalOnlyIfThereIsNothingElse) {
  EXPECT_NE(ChooseGid(Port(), ParseGid("fe80::2"))->entry.index, 1u);
  const std::vector<GidEntry> only = {Entry(0, GidType::kRoceV1, "fe80::1"),
                                      Entry(1, GidType::kRoceV2, "fe80::1")};
  const auto choice = ChooseGid(only, {});
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->entry.index, 1u);
  EXPECT_THAT(choice->reason, ::testing::HasSubstr("link-local"));
}

TEST(GidChoice, OnInfiniBandTheFirst) {
  const std::vector<GidEntry> port = {Entry(0, GidType::kInfiniBand, "fe80::5"),
                                      Entry(1, GidType::kInfiniBand, "fd00::5")};
  EXPECT_EQ(ChooseGid(port, ParseGid("fd00::9"))->entry.index, 0u);
}

TEST(GidChoice, NothingOfNothing) { EXPECT_FALSE(ChooseGid({}, {})); }

TEST(GidChoice, TextsReadBack) {
  for (const char* text : {"10.1.0.5", "fe80::1", "2001:db8::5"}) {
    const auto gid = ParseGid(text);
    ASSERT_TRUE(gid) << text;
    EXPECT_EQ(GidText(*gid), text);
  }
  EXPECT_FALSE(ParseGid("ten.one.zero.five"));
  EXPECT_TRUE(IsLinkLocal(*ParseGid("169.254.3.4")));
  EXPECT_FALSE(IsLinkLocal(*ParseGid("169.253.3.4")));
  EXPECT_EQ(CommonBits(*ParseGid("10.1.0.5"), *ParseGid("10.1.0.4")), 127u);
}

}  // namespace
}  // namespace phub::transport
