// Settings that come from the cluster's view.
#include "server/config/view_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status_text.h"
#include "server/config/rack_settings.h"
#include "tests/unit/server/config/load_settings.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config LoadAt(const char* place, std::vector<const char*> more = {}) {
  more.insert(more.end(), {place, "--control-store=etcd:https://a:2379", "--token-key=k"});
  return Load(more);
}

view::View TwoByTwo() { return {.number = 3, .racks = {{"north", 2}, {"south", 2}}}; }

std::map<view::Place, std::string> EndpointsOf(const view::View& view) {
  std::map<view::Place, std::string> endpoints;
  for (const view::Place& place : PlacesOf(view))
    endpoints[place] = place.group + std::to_string(place.number) + ":7700";
  return endpoints;
}

Settings UseAt(const char* place, const view::View& view) {
  Settings settings = LoadAt(place).settings;
  settings.tls_client_ca = "ca.crt";
  const absl::Status used = UseView(view, EndpointsOf(view), settings);
  EXPECT_TRUE(used.ok()) << used;
  return settings;
}

TEST(ViewSettings, AreThoseOfHandWrittenLists) {
  const Settings settings = UseAt("--place=south/1", TwoByTwo());
  EXPECT_EQ(settings.daemons, "south0:7700,south1:7700");
  EXPECT_EQ(settings.racks, "north1:7700,south1:7700");
  EXPECT_EQ(FindRackPlace(settings)->self, 1u);
  EXPECT_EQ(FindPlaceAmongRacks(settings)->self, 1u);
  EXPECT_EQ(settings.role, RackRole::kRack);
  EXPECT_EQ(settings.topology, "");
  EXPECT_EQ(settings.view.number, 3);
}

TEST(ViewSettings, OfAnAggregatorAndOfMeasuredRacks) {
  view::View view = TwoByTwo();
  view.aggregators = {"spine"};
  Settings settings = UseAt("--place=spine/0", view);
  EXPECT_EQ(settings.daemons, "spine0:7700,spine1:7700");
  EXPECT_EQ(settings.racks, "north0:7700,south0:7700");
  EXPECT_EQ(settings.aggregators, "spine0:7700");
  EXPECT_EQ(settings.role, RackRole::kAggregator);
  EXPECT_EQ(FindPlaceAmongRacks(settings)->self, 2u);
  view.aggregators.clear();
  view.topology = "probe";
  settings = UseAt("--place=north/0", view);
  EXPECT_TRUE(IsTopologyMeasured(settings));
}

TEST(ViewSettings, OfOneRackNeedNoCertificates) {
  const view::View view{.number = 1, .racks = {{"alone", 2}}};
  Settings settings = LoadAt("--place=alone/1").settings;
  ASSERT_TRUE(UseView(view, EndpointsOf(view), settings).ok());
  EXPECT_EQ(settings.daemons, "alone0:7700,alone1:7700");
  EXPECT_EQ(settings.racks, "");
  settings = LoadAt("--place=north/0").settings;
  EXPECT_THAT(std::string(MessageOf(UseView(TwoByTwo(), EndpointsOf(TwoByTwo()), settings))),
              HasSubstr("set tls_certificate, tls_key and tls_client_ca"));
}

TEST(ViewSettings, AnEndpointThatIsNotValidIsNamed) {
  auto endpoints = EndpointsOf(TwoByTwo());
  endpoints[{"north", 1}] = "north1";
  Settings settings = LoadAt("--place=south/1").settings;
  EXPECT_THAT(std::string(MessageOf(UseView(TwoByTwo(), endpoints, settings))),
              HasSubstr("view 3: has the entry \"north1\""));
}

TEST(ViewSettings, AndHandWrittenListsExcludeEachOther) {
  for (const char* const other :
       {"--daemons=a:1", "--self=a:1", "--racks=a:1,b:1", "--rack-self=a:1", "--aggregators=a:1",
        "--topology=probe", "--role=aggregator"}) {
    const std::string name = std::string(other).substr(2, std::string(other).find('=') - 2);
    std::string setting = name;
    for (char& each : setting) each = each == '-' ? '_' : each;
    EXPECT_THAT(LoadAt("--place=north/0", {other}).problems,
                ElementsAre(HasSubstr("are both set; remove " + setting)))
        << other;
  }
  EXPECT_THAT(LoadAt("--place=north/0").problems, IsEmpty());
}

}  // namespace
}  // namespace phub::server
