#include "common/transport/verbs/device_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/verbs/fake_verbs.h"

namespace phub::transport {
namespace {

using ::testing::HasSubstr;

TEST(VerbsDeviceList, SaysDevicePortAndIndex) {
  const auto devices = ParseVerbsDevices("mlx5_0,mlx5_1:2,rocep1s0f0.100:1:3");
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices->size(), 3u);
  EXPECT_EQ((*devices)[0].name, "mlx5_0");
  EXPECT_EQ((*devices)[0].port, 0);
  EXPECT_EQ((*devices)[0].gid_index, std::nullopt);
  EXPECT_EQ((*devices)[1].port, 2);
  EXPECT_EQ((*devices)[1].gid_index, std::nullopt);
  EXPECT_EQ((*devices)[2].name, "rocep1s0f0.100");
  EXPECT_EQ((*devices)[2].port, 1);
  EXPECT_EQ((*devices)[2].gid_index, 3u);
  EXPECT_EQ(ParseVerbsDevices("mlx4_0:1,mlx4_0:2")->size(), 2u);
}

TEST(VerbsDeviceList, OtherFormsAreRefusedWithWhatToWrite) {
  for (const char* text : {"", ",", "a,", ":1", "a:", "a:0", "a:256", "a:x", "a:1:", "a:1:-1",
                           "a:1:2:3", "a::3", "a:1 ", "a:+1"}) {
    SCOPED_TRACE(text);
    const auto devices = ParseVerbsDevices(text);
    ASSERT_FALSE(devices.ok());
    EXPECT_THAT(std::string(devices.status().message()), HasSubstr("such as mlx5_0:1:3"));
  }
  for (const char* text : {"a,a", "a:1,b,a:1", "a,a:2", "a:1:3,a:1:4"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(std::string(ParseVerbsDevices(text).status().message()),
                HasSubstr("RDMA device a is named twice"));
  }
}

TEST(VerbsDeviceList, WhatIsNamedIsWhatIsOpened) {
  fake_verbs::Reset();
  fake_verbs::TheDevice().bare_first_port = true;
  const auto named = ParseVerbsDevices("fake0:2:1");
  ASSERT_TRUE(named.ok());
  const auto device = VerbsDevice::Open(named->front());
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->port(), 2);
  EXPECT_EQ((*device)->gid().index, 1u);
  EXPECT_THAT((*device)->gid_reason(), HasSubstr("its index was configured"));
  EXPECT_THAT(
      std::string(VerbsDevice::Open(ParseVerbsDevices("fake0:2:7")->front()).status().message()),
      HasSubstr("has no address 7"));
}

}  // namespace
}  // namespace phub::transport
