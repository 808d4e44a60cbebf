// Settings that list the daemons of the rack, and the racks.
#include "server/config/rack_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/config/load_settings.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(RackSettings, ARackIsAListAndAnEntryOfIt) {
  const char* const list = "node1:7700,node2:7700, [::1]:7701";
  const Config named = Load({"--daemons", list, "--self", "[::1]:7701"});
  EXPECT_THAT(named.problems, IsEmpty());
  const auto place = FindRackPlace(named.settings);
  ASSERT_TRUE(place.ok());
  EXPECT_THAT(place->endpoints, ElementsAre("node1:7700", "node2:7700", "[::1]:7701"));
  EXPECT_EQ(place->self, 2u);
  // Without self: this daemon is the entry with its own listen address.
  const Config found =
      Load({"--daemons", "127.0.0.1:7700,127.0.0.1:7800", "--listen", "127.0.0.1:7800"});
  EXPECT_THAT(found.problems, IsEmpty());
  EXPECT_EQ(FindRackPlace(found.settings)->self, 1u);
  EXPECT_THAT(FindRackPlace(Load({}).settings)->endpoints, IsEmpty());
}

TEST(RackSettings, MistakesInARackAreNamedWithTheirPlace) {
  const auto problem = [](std::vector<const char*> flags) {
    const Config config = Load(std::move(flags));
    EXPECT_THAT(config.problems, SizeIs(1));
    return config.problems.empty() ? std::string() : config.problems[0];
  };
  EXPECT_EQ(problem({"--daemons", "node1:7700,node2:7700", "--self", "node3:7700"}),
            "--self: self = \"node3:7700\" is not in daemons = \"node1:7700,node2:7700\"; spell it "
            "exactly as in the list");
  EXPECT_THAT(problem({"--daemons", "node1:7700"}),
              HasSubstr("--daemons: listen = \"127.0.0.1:7700\" is not in daemons"));
  EXPECT_THAT(problem({"--self", "node1:7700"}), HasSubstr("`daemons` is empty"));
  EXPECT_THAT(problem({"--daemons", "node1:1,node2:1,node1:1"}),
              HasSubstr("has the entry \"node1:1\" twice"));
  EXPECT_THAT(problem({"--daemons", "node1"}),
              HasSubstr("has the entry \"node1\", which has no port"));
  EXPECT_THAT(problem({"--daemons", "node1:0"}), HasSubstr("\"node1:0\" with port 0"));
  EXPECT_THAT(problem({"--daemons", "0.0.0.0:7700"}), HasSubstr("a wildcard address"));
  EXPECT_THAT(problem({"--daemons", "node1:1,,node2:1"}), HasSubstr("an empty entry"));
}

TEST(RackSettings, AggregatorsComeAfterTheRacksAndSayWhatTheyAre) {
  const std::vector<const char*> lists = {"--racks", "127.0.0.1:7700,node1:7700", "--aggregators",
                                          "127.0.0.1:7800,node2:7800"};
  const auto with = [&](const std::vector<const char*>& more) {
    std::vector<const char*> arguments = lists;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Load(arguments);
  };
  const Config rack = with({});
  EXPECT_THAT(rack.problems, IsEmpty());
  const auto place = FindPlaceAmongRacks(rack.settings);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->endpoints,
              ElementsAre("127.0.0.1:7700", "node1:7700", "127.0.0.1:7800", "node2:7800"));
  EXPECT_EQ(place->self, 0u);
  EXPECT_EQ(place->aggregator_count, 2u);
  const Config aggregator = with({"--listen", "127.0.0.1:7800", "--role", "aggregator"});
  EXPECT_THAT(aggregator.problems, IsEmpty());
  EXPECT_EQ(FindPlaceAmongRacks(aggregator.settings)->self, 2u);
  // Each daemon states its own role, so that a list in the wrong order is detected.
  EXPECT_THAT(with({"--listen", "127.0.0.1:7800"}).problems,
              ElementsAre(AllOf(HasSubstr("127.0.0.1:7800 in aggregators"),
                                HasSubstr("set role = \"aggregator\""))));
  EXPECT_THAT(with({"--role", "aggregator"}).problems,
              ElementsAre(HasSubstr("`aggregators` does not list this daemon")));
  EXPECT_THAT(with({"--listen", "127.0.0.1:7900"}).problems,
              ElementsAre(HasSubstr("is not in racks and aggregators")));
  EXPECT_THAT(Load({"--aggregators", "127.0.0.1:7700", "--role", "aggregator"}).problems,
              ElementsAre(HasSubstr("`racks` is empty")));
  EXPECT_THAT(Load({"--role", "aggregator"}).problems,
              ElementsAre(HasSubstr("--role: role = \"aggregator\"")));
  EXPECT_THAT(Load({"--racks", "127.0.0.1:7700,a:1", "--aggregators", "a:1"}).problems,
              ElementsAre(HasSubstr("\"a:1\", which is also in racks")));
}

TEST(RackSettings, RacksMayHaveSeveralDaemonsWhichEachNameTheirOwnCounterparts) {
  const auto with = [](const char* racks, const char* daemons) {
    return Load({"--listen", "127.0.0.1:7701", "--racks", racks, "--daemons", daemons});
  };
  const Config right = with("127.0.0.1:7701,node1:7701", "127.0.0.1:7700,127.0.0.1:7701");
  EXPECT_THAT(right.problems, IsEmpty());
  EXPECT_EQ(FindRackPlace(right.settings)->self, 1u);
  EXPECT_EQ(FindPlaceAmongRacks(right.settings)->self, 0u);
  EXPECT_THAT(with("127.0.0.1:7701,127.0.0.1:7700", "127.0.0.1:7700,127.0.0.1:7701").problems,
              ElementsAre(AllOf(HasSubstr("--racks: racks and aggregators list 127.0.0.1:7700 as "
                                          "entry 1, but `daemons` lists it as daemon 0 of this "
                                          "rack"),
                                HasSubstr("this is daemon 1, which must list daemon 1 of every "
                                          "rack"))));
}

// Otherwise the daemons would start, but could never reach each other.
TEST(RackSettings, RacksWithTlsOrIdentitiesNeedWhoVouchesForTheOthers) {
  const std::vector<const char*> racks = {"--racks", "127.0.0.1:7700,127.0.0.1:7701", "--listen",
                                          "127.0.0.1:7700"};
  const auto with = [&](const std::vector<const char*>& more) {
    std::vector<const char*> arguments = racks;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Load(arguments).problems;
  };
  EXPECT_THAT(with({}), IsEmpty());
  const std::vector<const char*> tls = {"--tls-certificate", "c", "--tls-key", "k"};
  ASSERT_THAT(with(tls), SizeIs(1));
  const char* const needed = "racks needs state_dir, tls_certificate and tls_client_ca together";
  EXPECT_THAT(with(tls)[0], HasSubstr(needed));
  EXPECT_THAT(with({"--state-dir", "s"}), Contains(HasSubstr(needed)));
  EXPECT_THAT(with({"--tls-certificate", "c", "--tls-key", "k", "--tls-client-ca", "a",
                    "--state-dir", "s"}),
              IsEmpty());
}

}  // namespace
}  // namespace phub::server
