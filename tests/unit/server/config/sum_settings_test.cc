// The setting sum_aggregator: one or more aggregators.
#include "server/config/sum_settings.h"

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

const std::vector<const char*> kTls = {"--state-dir",     "/tmp/state", "--tls-certificate", "a",
                                       "--tls-client-ca", "b",          "--tls-key",         "c",
                                       "--insecure"};

Config WithTls(const char* aggregators) {
  std::vector<const char*> flags = kTls;
  flags.insert(flags.end(), {"--sum-aggregator", aggregators});
  return Load(flags);
}

std::vector<std::string> EntriesOf(const Config& config) {
  EXPECT_THAT(config.problems, IsEmpty());
  const auto entries = ParseSumAggregators(config.settings.sum_aggregator);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return entries.ok() ? *entries : std::vector<std::string>{};
}

TEST(SumSettings, NoneOneOrSeveralAggregators) {
  EXPECT_THAT(EntriesOf(Load({})), IsEmpty());
  EXPECT_THAT(EntriesOf(Load({"--sum-aggregator", " "})), IsEmpty());
  EXPECT_THAT(EntriesOf(Load({"--sum-aggregator", "/run/phub/a.sock"})),
              ElementsAre("/run/phub/a.sock"));
  EXPECT_THAT(EntriesOf(WithTls("10.0.0.9:7702")), ElementsAre("10.0.0.9:7702"));
  EXPECT_THAT(EntriesOf(Load({"--sum-aggregator", "/run/b.sock, /run/a.sock"})),
              ElementsAre("/run/b.sock", "/run/a.sock"));
}

TEST(SumSettings, ControlSocketsAndEndpointsMayBeMixed) {
  EXPECT_THAT(EntriesOf(WithTls("/run/a.sock,10.0.0.9:7702,[::1]:7702,sums:7702")),
              ElementsAre("/run/a.sock", "10.0.0.9:7702", "[::1]:7702", "sums:7702"));
  EXPECT_TRUE(IsSocketPath("/run/a.sock"));
  EXPECT_FALSE(IsSocketPath("10.0.0.9:7702"));
}

TEST(SumSettings, MistakesAreNamedWithTheirEntry) {
  const auto problem = [](const std::string& aggregators) {
    const Config config = Load({"--sum-aggregator", aggregators.c_str()});
    EXPECT_THAT(config.problems, SizeIs(1));
    return config.problems.empty() ? std::string() : config.problems[0];
  };
  EXPECT_EQ(problem("/run/a.sock,,/run/b.sock"),
            "--sum-aggregator: \"/run/a.sock,,/run/b.sock\" has an empty entry");
  EXPECT_THAT(problem("/run/a.sock,"), HasSubstr("has an empty entry"));
  EXPECT_THAT(problem("/run/a.sock,/run/b.sock, /run/a.sock"),
              HasSubstr("has the entry \"/run/a.sock\" twice"));
  EXPECT_THAT(
      problem("/run/a.sock,b.sock"),
      AllOf(HasSubstr("has the entry \"b.sock\", which has no port"), HasSubstr("begins with /")));
  EXPECT_THAT(problem("sums:0"), HasSubstr("has the entry \"sums:0\" with port 0"));
  // Only the endpoint needs TLS.
  EXPECT_THAT(problem("/run/a.sock,10.0.0.9:7702"),
              AllOf(HasSubstr("sum_aggregator names 10.0.0.9:7702, which is on another host"),
                    HasSubstr("tls_client_ca")));
  std::string many = "/run/0.sock";
  for (int i = 1; i <= 64; ++i) many += ",/run/" + std::to_string(i) + ".sock";
  EXPECT_THAT(problem(many), HasSubstr("has 65 entries; phubd uses at most 64 aggregators"));
}

}  // namespace
}  // namespace phub::server
