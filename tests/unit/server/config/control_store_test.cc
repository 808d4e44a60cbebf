// The settings of the control store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/control_store_setting.h"
#include "tests/unit/server/config/load_settings.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ControlStoreSetting, SqliteIsAnotherWordForStateDir) {
  const Config config = Load({"--control-store=sqlite:/var/lib/phub"});
  EXPECT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(config.settings.state_dir, "/var/lib/phub");
  EXPECT_TRUE(HasIdentities(config.settings));
  EXPECT_EQ(EtcdEndpointsOf(config.settings), "");
  EXPECT_FALSE(HasIdentities(Load({}).settings));
}

TEST(ControlStoreSetting, EtcdGivesIdentitiesWithoutAStateDir) {
  const Config config = Load(
      {"--control-store=etcd:https://a:2379,https://b:2379", "--token-key=/etc/phub/token.key"});
  EXPECT_THAT(config.problems, IsEmpty());
  EXPECT_TRUE(HasIdentities(config.settings));
  EXPECT_EQ(EtcdEndpointsOf(config.settings), "https://a:2379,https://b:2379");
  EXPECT_EQ(config.settings.state_dir, "");
}

TEST(ControlStoreSetting, ContradictionsAreNamed) {
  const std::string key = "--token-key=k";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--control-store=mysql:x"}, "sqlite:DIR or etcd:"},
      {{"--control-store=sqlite:"}, "sqlite:DIR or etcd:"},
      {{"--control-store=sqlite:a", "--state-dir=b"}, "are both set"},
      {{"--control-store=etcd:https://a:1", "--state-dir=b", key}, "are both set"},
      {{"--control-store=etcd:https://a:1"}, "needs token_key"},
      {{"--control-store=etcd:", key}, "names no endpoint"},
      {{"--control-store=etcd:https://a:1,,https://b:1", key}, "names \"\""},
      {{"--control-store=etcd:a:1", key}, "write https://host:port"},
      {{"--control-store=etcd:http://10.0.0.1:1", key}, "without TLS"},
      {{"--control-store=etcd:https://a:1", key, "--etcd-prefix=phub"}, "must begin with '/'"},
      {{"--control-store=etcd:https://a:1", key, "--etcd-certificate=c"}, "set together"},
      {{"--etcd-ca=c"}, "etcd_ca needs control_store"},
      {{key}, "token_key needs control_store"},
  };
  for (const auto& [arguments, problem] : wrong) {
    std::vector<const char*> given;
    for (const std::string& argument : arguments) given.push_back(argument.c_str());
    EXPECT_THAT(Load(given).problems, ElementsAre(HasSubstr(problem))) << problem;
  }
}

}  // namespace
}  // namespace phub::server
