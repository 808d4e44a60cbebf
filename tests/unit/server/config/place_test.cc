// The settings place and advertise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/place_setting.h"
#include "tests/unit/server/config/load_settings.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config LoadInCluster(std::vector<const char*> arguments) {
  arguments.insert(arguments.end(), {"--control-store=etcd:https://a:2379", "--token-key=k"});
  return Load(arguments);
}

TEST(PlaceSetting, IsAPlaceOfTheView) {
  Config config = LoadInCluster({"--place=north/1"});
  EXPECT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(ViewPlaceOf(config.settings), (view::Place{"north", 1}));
  EXPECT_EQ(AdvertisedEndpoint(config.settings), "127.0.0.1:7700");
  config = LoadInCluster(
      {"--place=north/1", "--listen=0.0.0.0:7700", "--insecure", "--advertise=node7:7700"});
  EXPECT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(AdvertisedEndpoint(config.settings), "node7:7700");
  EXPECT_EQ(ViewPlaceOf(Load({}).settings).group, "");
}

TEST(PlaceSetting, NeedsEtcdAndAnAddressThatOthersReach) {
  EXPECT_THAT(Load({"--place=north/1"}).problems,
              ElementsAre(HasSubstr("place needs control_store = \"etcd:...\"")));
  EXPECT_THAT(Load({"--advertise=node7:7700"}).problems,
              ElementsAre(HasSubstr("advertise needs control_store = \"etcd:...\"")));
  EXPECT_THAT(LoadInCluster({"--place=north"}).problems,
              ElementsAre(HasSubstr("place = \"north\" is not a place")));
  EXPECT_THAT(LoadInCluster({"--place=north/1", "--listen=0.0.0.0:7700", "--insecure"}).problems,
              ElementsAre(HasSubstr("listen = \"0.0.0.0:7700\" is a wildcard address")));
  EXPECT_THAT(LoadInCluster({"--place=north/1", "--listen=127.0.0.1:0"}).problems,
              ElementsAre(HasSubstr("listen = \"127.0.0.1:0\" has port 0")));
  EXPECT_THAT(LoadInCluster({"--advertise=[::]:7700"}).problems,
              ElementsAre(HasSubstr("advertise = \"[::]:7700\" is a wildcard address")));
}

}  // namespace
}  // namespace phub::server
