#include "server/transports/verbs/verbs_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::server {
namespace {

using ::testing::ElementsAre;

TEST(VerbsDevices, CoreLoopsTakeDevicesOfTheirOwnNodeInTurn) {
  const NumaNodes devices = {0u, 1u, 1u};
  EXPECT_THAT(AssignDevices({0u, 0u, 1u, 1u, 1u}, devices), ElementsAre(0, 0, 1, 2, 1));
}

TEST(VerbsDevices, ThoseWithoutADeviceNearTakeAllInTurn) {
  EXPECT_THAT(AssignDevices({2u, 2u, 2u}, {0u, 1u}), ElementsAre(0, 1, 0));
  // Core loops that are not pinned, or devices without a known NUMA node.
  EXPECT_THAT(AssignDevices({std::nullopt, std::nullopt}, {0u, 1u}), ElementsAre(0, 1));
  EXPECT_THAT(AssignDevices({0u, 1u, 0u}, {std::nullopt, std::nullopt}), ElementsAre(0, 1, 0));
  EXPECT_THAT(AssignDevices({1u, 2u, 1u, 3u}, {1u, 0u}), ElementsAre(0, 0, 0, 1));
}

}  // namespace
}  // namespace phub::server
