// The hashes that daemons compare, if their racks come from a cluster's view.
#include "server/control/shared_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/generators.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ControlOptions InView(std::int64_t view, const std::string& digest, const std::string& endpoint) {
  ControlOptions options;
  options.rack_endpoints = {"north0:7700", endpoint};
  options.racks = {"north0:7700", endpoint};
  options.rack_topology = std::make_shared<const plan::Topology>(*plan::Generate("switch:2"));
  options.view = view;
  options.view_digest = digest;
  return options;
}

std::string Difference(const ControlOptions& one, const ControlOptions& other) {
  return DescribeDifference({"rack 0", HashOfRacks(one, 1), SettingsOfRacks(one, 1)},
                            {"rack 1", HashOfRacks(other, 1), SettingsOfRacks(other, 1)});
}

TEST(SharedSettings, OfOneViewAreEqualAtWhateverEndpointsDaemonsAre) {
  const ControlOptions one = InView(3, "aa", "south0:7700");
  const ControlOptions moved = InView(3, "aa", "elsewhere:1");
  EXPECT_EQ(HashOfRacks(one, 1), HashOfRacks(moved, 1));
  EXPECT_EQ(HashOfConfiguration(one), HashOfConfiguration(moved));
  // Hand-written lists must be equal.
  EXPECT_NE(HashOfRacks(InView(0, "", "south0:7700"), 1),
            HashOfRacks(InView(0, "", "elsewhere:1"), 1));
  EXPECT_NE(HashOfConfiguration(InView(0, "", "south0:7700")),
            HashOfConfiguration(InView(0, "", "elsewhere:1")));
}

TEST(SharedSettings, OfDifferentViewsDifferByNumber) {
  const ControlOptions one = InView(3, "aa", "south0:7700");
  const ControlOptions other = InView(4, "bb", "elsewhere:1");
  EXPECT_NE(HashOfRacks(one, 1), HashOfRacks(other, 1));
  EXPECT_NE(HashOfConfiguration(one), HashOfConfiguration(other));
  EXPECT_THAT(Difference(one, other), HasSubstr("view is 3 at rack 0 and 4 at rack 1"));
  EXPECT_THAT(Difference(one, other), Not(HasSubstr("7700")));
}

// The view was removed, and declared again.
TEST(SharedSettings, OfViewsWithOneNumberAndOtherContentsDiffer) {
  const ControlOptions one = InView(1, "aa", "south0:7700");
  const ControlOptions other = InView(1, "bb", "south0:7700");
  EXPECT_NE(HashOfRacks(one, 1), HashOfRacks(other, 1));
  EXPECT_NE(HashOfConfiguration(one), HashOfConfiguration(other));
  EXPECT_THAT(Difference(one, other), HasSubstr("digest of the view is aa at rack 0 and bb"));
}

}  // namespace
}  // namespace phub::server
