#include "common/view/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status_text.h"

namespace phub::view {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

View TwoRacks() { return {.number = 3, .racks = {{"north", 2}, {"south", 2}}}; }

constexpr const char* kTwoMembers =
    "members = [\"a\", \"b\"]\nswitches = [\"s\"]\n"
    "[[link]]\nfrom = \"a\"\nto = \"s\"\n[[link]]\nfrom = \"b\"\nto = \"s\"\n";

std::string ProblemIn(const View& view) { return std::string(MessageOf(CheckView(view))); }

TEST(View, IsValidWithRacksAggregatorsAndATopology) {
  View view = TwoRacks();
  EXPECT_EQ(ProblemIn(view), "");
  view.topology = kTwoMembers;
  EXPECT_EQ(ProblemIn(view), "");
  view.topology = "probe";
  EXPECT_EQ(ProblemIn(view), "");
  view.topology = "";
  view.aggregators = {"spine"};
  EXPECT_EQ(ProblemIn(view), "");
  EXPECT_EQ(ProblemIn({.racks = {{"alone", 64}}}), "");
}

TEST(View, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(ProblemIn({}), StartsWith("rack is missing"));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 1}, {"", 1}}}), StartsWith("rack[1].name is \"\""));
  EXPECT_THAT(ProblemIn({.racks = {{"a/b", 1}}}), StartsWith("rack[0].name is \"a/b\""));
  EXPECT_THAT(ProblemIn({.racks = {{std::string(64, 'a'), 1}}}), StartsWith("rack[0].name"));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 0}}}), StartsWith("rack[0].daemons is 0"));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 65}}}), StartsWith("rack[0].daemons is 65"));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 1}, {"b", 2}}}), StartsWith("rack[1].daemons is 2"));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 1}, {"a", 1}}}), HasSubstr("name of another rack"));
  View view = TwoRacks();
  view.aggregators = {"north"};
  EXPECT_THAT(ProblemIn(view), StartsWith("aggregators[0] is \"north\""));
  view.aggregators = {"x", "y"};
  EXPECT_THAT(ProblemIn(view), StartsWith("topology is missing"));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 1}}, .aggregators = {"x"}}),
              StartsWith("aggregators is set, but the view has one rack"));
}

TEST(View, ChecksItsTopology) {
  View view = TwoRacks();
  view.topology = "members = [";
  EXPECT_THAT(ProblemIn(view), StartsWith("topology: line "));
  view.topology = kTwoMembers;
  view.racks.push_back({"west", 2});
  EXPECT_THAT(ProblemIn(view), StartsWith("topology has 2 members, but the view has 3 racks"));
  view = TwoRacks();
  view.aggregators = {"spine"};
  view.topology = kTwoMembers;
  EXPECT_THAT(ProblemIn(view), StartsWith("topology has 0 aggregating switches"));
  view.topology = "probe";
  EXPECT_THAT(ProblemIn(view), StartsWith("topology is \"probe\""));
  EXPECT_THAT(ProblemIn({.racks = {{"a", 1}}, .topology = "probe"}),
              StartsWith("topology is set, but the view has one rack"));
}

TEST(View, OfAnySizeIsRefusedBeforeItIsRead) {
  View view = TwoRacks();
  view.topology = std::string(kTopologyBytesMax + 1, '#');
  EXPECT_THAT(ProblemIn(view), HasSubstr("bytes; at most 262144 are allowed"));
  View many;
  for (int i = 0; i < 65; ++i) many.racks.push_back({"r" + std::to_string(i), 1});
  EXPECT_THAT(ProblemIn(many), StartsWith("rack and aggregators list 65 racks"));
  many.racks.pop_back();
  EXPECT_EQ(ProblemIn(many), "");
  many.aggregators = {"x"};
  EXPECT_THAT(ProblemIn(many), HasSubstr("64 racks and 1 aggregators"));
}

TEST(Place, IsAGroupAndANumber) {
  const auto place = ParsePlace("north/12");
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(*place, (Place{"north", 12}));
  EXPECT_EQ(ToString(*place), "north/12");
  for (const char* const wrong : {"", "north", "north/", "/0", "north/-1", "north/01", "north/64",
                                  "north/1x", "a/b/0", "north/ 1", "north/99999999999999"}) {
    EXPECT_FALSE(ParsePlace(wrong).ok()) << wrong;
  }
}

TEST(Place, IsFoundInTheViewOrRefusedByNameAndNumber) {
  View view = TwoRacks();
  view.aggregators = {"spine"};
  EXPECT_EQ(*FindGroup(view, {"south", 1}), 1u);
  EXPECT_EQ(*FindGroup(view, {"spine", 1}), 2u);
  EXPECT_EQ(MessageOf(FindGroup(view, {"south", 2}).status()),
            "place south/2 is not in view 3: south has 2 daemons, numbered from 0");
  EXPECT_EQ(MessageOf(FindGroup(view, {"east", 0}).status()),
            "place east/0 is not in view 3, which has north, south, spine");
  view.aggregators.clear();
  EXPECT_THAT(PlacesOf(view), ElementsAre(Place{"north", 0}, Place{"north", 1}, Place{"south", 0},
                                          Place{"south", 1}));
}

TEST(View, HasADigestOfEverythingButItsNumber) {
  const View view = TwoRacks();
  View other = view;
  other.number = 4;
  EXPECT_EQ(DigestOf(view), DigestOf(other));
  other.racks[1].name = "west";
  EXPECT_NE(DigestOf(view), DigestOf(other));
  other = view;
  other.racks[0].daemons = 1;
  EXPECT_NE(DigestOf(view), DigestOf(other));
  other = view;
  other.aggregators = {"spine"};
  EXPECT_NE(DigestOf(view), DigestOf(other));
  other = view;
  other.topology = "probe";
  EXPECT_NE(DigestOf(view), DigestOf(other));
}

}  // namespace
}  // namespace phub::view
