#include "common/view/view_toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status_text.h"

namespace phub::view {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kRacks =
    "[[rack]]\nname = \"north\"\ndaemons = 2\n[[rack]]\nname = \"south\"\ndaemons = 2\n";
constexpr const char* kTopology =
    "members = [\"a\", \"b\"]\naggregators = [\"s\"]\n"
    "[[link]]\nfrom = \"a\"\nto = \"s\"\n[[link]]\nfrom = \"b\"\nto = \"s\"\n";

absl::StatusOr<std::string> ReadFile(const std::string& name) {
  if (name == "links.toml") return std::string(kTopology);
  return absl::NotFoundError(name + " does not exist");
}

std::string ProblemIn(const std::string& text) {
  return std::string(MessageOf(ParseViewToml(text, ReadFile).status()));
}

TEST(ViewToml, HasRacksInOrderAndOptionallyTheRest) {
  auto view = ParseViewToml(kRacks, ReadFile);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->racks, (std::vector<Rack>{{"north", 2}, {"south", 2}}));
  EXPECT_EQ(view->topology, "");
  view = ParseViewToml(
      std::string("aggregators = [\"spine\"]\ntopology = \"links.toml\"\n") + kRacks, ReadFile);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->aggregators, std::vector<std::string>{"spine"});
  EXPECT_EQ(view->topology, kTopology);
  view = ParseViewToml(std::string("topology = \"probe\"\n") + kRacks, ReadFile);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->topology, "probe");
}

TEST(ViewToml, ThatWasWrittenReadsBackEqual) {
  View view{.number = 7, .racks = {{"north", 2}, {"south", 2}}};
  for (const char* const topology : {"", "probe", kTopology}) {
    view.topology = topology;
    view.aggregators.clear();
    if (topology == kTopology) view.aggregators = {"spine"};
    const std::string text = ViewToToml(view);
    EXPECT_THAT(text, StartsWith("# view 7\n"));
    auto read = ParseViewToml(text, ReadFile);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
    read->number = 7;
    EXPECT_EQ(*read, view);
  }
}

TEST(ViewToml, NamesTheLineTheFieldAndTheReason) {
  EXPECT_THAT(ProblemIn(""), HasSubstr("rack is missing"));
  EXPECT_THAT(ProblemIn("[[rack]\n"), StartsWith("line 1: not TOML: "));
  EXPECT_EQ(ProblemIn("[[rack]]\nname = \"a\"\ndaemon = 1\n"),
            "line 3: unknown field \"daemon\" in [[rack]]; did you mean \"daemons\"?");
  EXPECT_THAT(ProblemIn("rakc = 1\n"), StartsWith("line 1: unknown field \"rakc\" in a view"));
  EXPECT_EQ(ProblemIn("[[rack]]\ndaemons = 1\n"), "line 1: rack[0].name is missing");
  EXPECT_EQ(ProblemIn("[[rack]]\nname = 1\ndaemons = 1\n"),
            "line 2: rack[0].name must be a string");
  EXPECT_EQ(ProblemIn("[[rack]]\nname = \"a\"\ndaemons = \"1\"\n"),
            "line 3: rack[0].daemons must be a number from 1 to 64");
  EXPECT_EQ(ProblemIn("[[rack]]\nname = \"a\"\ndaemons = 4294967297\n"),
            "line 3: rack[0].daemons must be a number from 1 to 64");
  EXPECT_THAT(ProblemIn("[rack]\nname = \"a\"\n"), HasSubstr("with two brackets"));
  EXPECT_THAT(ProblemIn("rack = [1]\n"), HasSubstr("as a [[rack]] table"));
  EXPECT_THAT(ProblemIn("aggregators = \"x\"\n"), HasSubstr("aggregators must be a list"));
  EXPECT_THAT(ProblemIn("aggregators = [1]\n"), HasSubstr("aggregators[0] must be a string"));
  EXPECT_EQ(ProblemIn(std::string("topology = \"no.toml\"\n") + kRacks),
            "line 1: topology: no.toml does not exist");
  EXPECT_THAT(ProblemIn("topology = \"\"\n"), HasSubstr("topology must be the name of a file"));
  EXPECT_THAT(ProblemIn("topology = \"probe\"\ntopology_text = \"x\"\n"),
              HasSubstr("topology and topology_text are both set"));
  EXPECT_THAT(ProblemIn(std::string(kViewFileBytesMax + 1, '#')), HasSubstr("at most 1048576"));
}

}  // namespace
}  // namespace phub::view
