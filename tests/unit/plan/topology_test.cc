#include "common/plan/topology.h"

#include <string>

#include "common/plan/topology_json.h"
#include "common/plan/topology_toml.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Generators, BuildTheShapesTheyName) {
  struct Case {
    const char* spec;
    std::size_t members, nodes, links;
  };
  for (const Case& c :
       {Case{"torus:4x4", 16, 16, 64}, Case{"torus:8x8", 64, 64, 256}, Case{"torus:2x2", 4, 4, 8},
        Case{"torus:4x4x4", 64, 64, 384}, Case{"mesh:4x4", 16, 16, 48}, Case{"ring:2", 2, 2, 2},
        Case{"switch:16", 16, 17, 32}, Case{"racks:4x8@4", 32, 37, 72},
        Case{"fattree:4x4", 16, 24, 64}, Case{"bigraph:4x8", 32, 40, 96}}) {
    const Topology topology = Named(c.spec);
    EXPECT_EQ(topology.members().size(), c.members) << c.spec;
    EXPECT_EQ(topology.nodes().size(), c.nodes) << c.spec;
    EXPECT_EQ(topology.links().size(), c.links) << c.spec;
    EXPECT_TRUE(topology.IsSymmetric()) << c.spec;
  }
}

TEST(Generators, CountOversubscriptionExactly) {
  const Topology topology = Named("racks:4x8@3");
  const auto uplink = topology.FindLink(*topology.FindNode("leaf0"), *topology.FindNode("core"));
  ASSERT_TRUE(uplink.has_value());
  EXPECT_EQ(topology.CapacityOf(*uplink), Fraction(8, 3));
  const auto host = topology.FindLink(*topology.FindNode("m0"), *topology.FindNode("leaf0"));
  EXPECT_EQ(topology.CapacityOf(*host), Rational(1));
}

TEST(Generators, TakeOptions) {
  const Topology topology = Named("switch:4,bandwidth=25Gbit/s,latency=2us,aggregate");
  EXPECT_EQ(topology.unit_bytes_per_s(), 3'125'000'000);
  EXPECT_EQ(topology.links()[0].latency_ns, 2000);
  EXPECT_TRUE(topology.HasAggregators());
}

TEST(Generators, AreTheSameForTheSameSeed) {
  EXPECT_EQ(TopologyToJson(Named("random:20,seed=7")), TopologyToJson(Named("random:20,seed=7")));
  EXPECT_NE(TopologyToJson(Named("random:20,seed=7")), TopologyToJson(Named("random:20,seed=8")));
}

TEST(Generators, RefuseWhatMakesNoSense) {
  for (const char* spec : {"",
                           "torus",
                           "torus:",
                           "torus:4x",
                           "torus:0x4",
                           "torus:-1",
                           "torus:99999999999999999999",
                           "torus:1",
                           "torus:4096x4096",
                           "blob:4",
                           "torus:4@2",
                           "racks:4@2",
                           "racks:4x8@0",
                           "racks:4x8@-1",
                           "racks:4x8@1/0",
                           "bigraph:4x7",
                           "switch:4,speed=3",
                           "torus:4x4,aggregate",
                           "switch:4,bandwidth=0Gbit/s",
                           "switch:4,bandwidth=fast",
                           "switch:4,latency=-1s",
                           "switch:4,latency=5m",
                           "ring:8,seed=1",
                           "random:8,switches=99999999",
                           "switch:5000"}) {
    const absl::StatusOr<Topology> topology = Generate(spec);
    EXPECT_FALSE(topology.ok()) << spec;
    EXPECT_NE(Message(topology.status()).find(spec), std::string::npos) << topology.status();
  }
}

TEST(Generators, ReadBandwidths) {
  EXPECT_EQ(ParseBandwidth("100Gbit/s"), 12'500'000'000);
  EXPECT_EQ(ParseBandwidth("800Mbit/s"), 100'000'000);
  EXPECT_EQ(ParseBandwidth("12.5GB/s"), 12'500'000'000);
  EXPECT_EQ(ParseBandwidth("1GiB/s"), 1 << 30);
  for (const char* text : {"", "/s", "100", "100Gbit", "-1GB/s", "0GB/s", "1bit/s", "9999999TB/s"})
    EXPECT_EQ(ParseBandwidth(text), std::nullopt) << text;
}

constexpr std::string_view kTwoHosts = R"(
name = "two hosts"
unit = "10Gbit/s"
latency = "3us"
members = ["a", "b"]
switches = ["s"]
[[link]]
from = "a"
to = "s"
[[link]]
from = "b"
to = "s"
bandwidth = "40Gbit/s"
latency = "1us"
)";

TEST(TopologyToml, ReadsWhatItDocuments) {
  const absl::StatusOr<Topology> topology = ParseTopologyToml(kTwoHosts);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->name(), "two hosts");
  EXPECT_EQ(topology->unit_bytes_per_s(), 1'250'000'000);
  ASSERT_EQ(topology->links().size(), 4u);
  EXPECT_EQ(topology->CapacityOf(LinkIndex{0}), Rational(1));
  EXPECT_EQ(topology->link(LinkIndex{0}).latency_ns, 3000);
  EXPECT_EQ(topology->CapacityOf(LinkIndex{2}), Rational(4));
  EXPECT_EQ(topology->link(LinkIndex{2}).latency_ns, 1000);
}

std::string WhyNot(std::string toml) {
  const absl::StatusOr<Topology> topology = ParseTopologyToml(toml);
  return topology.ok() ? "accepted" : Message(topology.status());
}

// The text above with one line replaced, counted from 1.
std::string WithLine(int line, std::string_view replacement) {
  std::string result;
  int at = 1;
  for (std::size_t begin = 0; begin < kTwoHosts.size(); ++at) {
    const std::size_t end = kTwoHosts.find('\n', begin);
    result += at == line ? replacement : kTwoHosts.substr(begin, end - begin);
    result += '\n';
    begin = end + 1;
  }
  return result;
}

TEST(TopologyToml, NamesTheLine) {
  EXPECT_EQ(WhyNot(WithLine(9, "to = \"t\"")),
            "line 9: link: no member, switch or aggregator is named 't'");
  EXPECT_EQ(WhyNot(WithLine(13, "bandwidth = 0")),
            "line 13: link b->s: the bandwidth must be positive");
  EXPECT_EQ(WhyNot(WithLine(13, "bandwidth = \"-8/3\"")),
            "line 13: link b->s: the bandwidth must be positive");
  EXPECT_EQ(WhyNot(WithLine(13, "bandwidth = 1.5")),
            "line 13: link b->s: the bandwidth must be like 1, \"8/3\" or \"40Gbit/s\"");
  EXPECT_EQ(
      WhyNot(WithLine(13, "speed = 3")),
      "line 13: unknown key 'speed' in [[link]] (known: from, to, bandwidth, latency, one_way)");
  EXPECT_EQ(WhyNot(WithLine(4, "latency = 3")).substr(0, 8), "line 4: ");
  EXPECT_EQ(WhyNot(WithLine(5, "members = [\"a\", \"a\"]")), "line 5: two nodes are named 'a'");
  EXPECT_EQ(WhyNot(WithLine(2, "name = ")).substr(0, 8), "line 2: ");
  EXPECT_EQ(WhyNot(WithLine(11, "from = \"a\"")).substr(0, 8), "line 10:");
}

TEST(TopologyToml, RefusesMembersThatCannotBeReached) {
  EXPECT_EQ(WhyNot("members = [\"a\", \"b\", \"c\"]\n[[link]]\nfrom = \"a\"\nto = \"b\"\n"),
            "there is no path from member 'a' to member 'c'");
  EXPECT_EQ(
      WhyNot("members = [\"a\", \"b\"]\n[[link]]\nfrom = \"a\"\nto = \"b\"\none_way = true\n"),
      "there is no path from member 'b' to member 'a'");
  EXPECT_EQ(WhyNot("members = [\"a\"]\nlink = []\n"),
            "the topology has 1 member(s); an exchange needs at least 2");
}

TEST(TopologyToml, RefusesBandwidthsWithoutACommonUnit) {
  EXPECT_NE(WhyNot("members = [\"a\", \"b\", \"c\"]\n"
                   "[[link]]\nfrom = \"a\"\nto = \"b\"\nbandwidth = \"1/1000003\"\n"
                   "[[link]]\nfrom = \"b\"\nto = \"c\"\nbandwidth = \"1/1000033\"\n")
                .find("no common unit"),
            std::string::npos);
}

TEST(TopologyJson, ReadsBackWhatItWrites) {
  for (const char* spec : {"torus:4x4", "racks:4x8@3", "bigraph:4x8", "switch:4,aggregate",
                           "random:9,seed=3", "fattree:4x4@2,latency=7us"}) {
    const std::string text = TopologyToJson(Named(spec));
    const absl::StatusOr<Topology> again = ParseTopologyJson(text);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(TopologyToJson(*again), text);
  }
}

TEST(TopologyJson, NamesThePlace) {
  const auto why = [](const std::string& text) {
    const absl::StatusOr<Topology> topology = ParseTopologyJson(text);
    return topology.ok() ? "accepted" : Message(topology.status());
  };
  EXPECT_EQ(why("{\n \"format\": }"), "line 2, column 12: invalid JSON");
  EXPECT_EQ(why("{\"format\": \"phub.topology.v9\"}"),
            "format: 'phub.topology.v9' is not phub.topology.v1");
  EXPECT_EQ(why("{\"form\": 1}").substr(0, 20), "unknown field 'form'");
  EXPECT_FALSE(ParseTopologyJson(std::string(1000, '[')).ok());
  std::string text = TopologyToJson(Named("ring:3"));
  text.replace(text.find("\"to\": \"m1\""), 10, "\"to\": \"m9\"");
  EXPECT_EQ(why(text), "links[0]: field 'to': there is no node 'm9'");
}

}  // namespace
}  // namespace phub::plan
