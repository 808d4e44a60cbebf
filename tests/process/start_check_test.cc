// --check-config says ok if and only if phubd would start with the same settings here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "common/net/listen.h"
#include "tests/process/daemon_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

class StartCheckTest : public ::testing::Test {
 protected:
  StartCheckTest() {
    const auto pki = [&](Arguments arguments) {
      arguments.insert(arguments.begin(), "pki");
      EXPECT_EQ(RunToEnd(kPhubctl, arguments).exit, Exit::WithCode(0));
    };
    pki({"init", folder_.path() + "/pki"});
    for (const char* name : {"n", "m"}) {
      pki({"issue", folder_.path() + "/pki", "server", name, "--host", "localhost"});
    }
  }
  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }
  Arguments Tls(const std::string& certificate = "n", const std::string& key = "n") const {
    return {"--tls-certificate", At("pki/server-" + certificate + ".crt"), "--tls-key",
            At("pki/server-" + key + ".key")};
  }
  Arguments State(const std::string& name) const {
    return {"--state-dir", At(name), "--control-socket", At(name + ".sock")};
  }
  static Finished Check(Arguments arguments) {
    arguments.push_back("--check-config");
    return RunToEnd(kPhubd, arguments);
  }
  // The check fails with exit code 1 and these words, and so does the start.
  static void ExpectBothRefuse(const Arguments& given, const std::string& words) {
    Arguments arguments = {"--listen", "127.0.0.1:0"};
    arguments.insert(arguments.end(), given.begin(), given.end());
    const Finished checked = Check(arguments);
    EXPECT_EQ(checked.exit, Exit::WithCode(1)) << words << checked.output;
    EXPECT_THAT(checked.error, HasSubstr(words));
    const Finished started = RunToEnd(kPhubd, arguments);
    EXPECT_NE(started.exit, Exit::WithCode(0)) << words << started.error;
    EXPECT_THAT(started.error, HasSubstr(words));
  }
  static Arguments Joined(Arguments first, const Arguments& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  const TemporaryFolder folder_;
};

TEST_F(StartCheckTest, Certificates) {
  ExpectBothRefuse({"--tls-certificate", "/nonexistent", "--tls-key", At("pki/server-n.key")},
                   "/nonexistent");
  std::ofstream(At("bad.crt")) << "nonsense\n";
  ExpectBothRefuse({"--tls-certificate", At("bad.crt"), "--tls-key", At("pki/server-n.key")},
                   "bad.crt does not begin with a certificate");
  ExpectBothRefuse(Tls("m", "n"), "server-n.key is not the private key of");
  ExpectBothRefuse(Joined(Joined(State("ca"), Tls()), {"--tls-client-ca", "/nonexistent"}),
                   "/nonexistent");
  ASSERT_EQ(chmod(At("pki/server-n.key").c_str(), 0644), 0);
  ExpectBothRefuse(Tls(), "server-n.key");
}

TEST_F(StartCheckTest, FilesAndFolders) {
  std::ofstream(At("file")) << "";
  ExpectBothRefuse({"--state-dir", At("file"), "--control-socket", At("x.sock")},
                   "is not a directory");
  ExpectBothRefuse({"--state-dir", At("no/where"), "--control-socket", At("x.sock")}, At("no"));
  ASSERT_EQ(mkdir(At("open").c_str(), 0755), 0);
  ExpectBothRefuse({"--state-dir", At("open"), "--control-socket", At("x.sock")}, "chmod 700");
  ExpectBothRefuse({"--state-dir", At("st"), "--control-socket", At("no/where/x.sock")},
                   At("no/where"));
  ExpectBothRefuse({"--state-dir", At("st"), "--control-socket", At("file")}, "is not a socket");
  ExpectBothRefuse({"--port-file", At("no/port")}, At("no/port"));
}

TEST_F(StartCheckTest, CoresDevicesAndTopologies) {
  ExpectBothRefuse({"--cores", "4001-4002"}, "core 4001");
  ExpectBothRefuse({"--cores", "250", "--pin", "on"}, "250");
  ExpectBothRefuse({"--verbs", "on", "--verbs-devices", "mlx5_99"}, "lanes over RDMA");
  const Arguments racks = {"--racks", "127.0.0.1:1,127.0.0.1:2", "--rack-self", "127.0.0.1:1"};
  ExpectBothRefuse(Joined(racks, {"--topology", "/nonexistent"}), "/nonexistent");
  std::ofstream(At("bad.toml")) << "garbage\n";
  ExpectBothRefuse(Joined(racks, {"--topology", At("bad.toml")}), "bad.toml");
}

TEST_F(StartCheckTest, Addresses) {
  ExpectBothRefuse({"--data-listen", "no.such.host.invalid:0", "--insecure"},
                   "cannot resolve 'no.such.host.invalid'");
  ExpectBothRefuse({"--data-listen", "192.0.2.77:0", "--insecure"}, "192.0.2.77");
  ExpectBothRefuse({"--metrics-listen", "192.0.2.77:0", "--metrics-open"}, "192.0.2.77");
  const auto taken = net::Listen("127.0.0.1", 0);
  ASSERT_TRUE(taken.ok());
  const std::string address = net::ListText(taken->addresses);
  ExpectBothRefuse({"--data-listen", address}, "already in use");
  const Finished named = Check({"--listen", "127.0.0.1:0", "--metrics-listen", address});
  EXPECT_EQ(named.exit, Exit::WithCode(1));
  EXPECT_THAT(named.error, AllOf(HasSubstr("metrics_listen: "), HasSubstr("in use by /"),
                                 HasSubstr("pid " + std::to_string(getpid()))));
}

// An administrator checks a file before restarting the daemon that runs with it.
TEST_F(StartCheckTest, TheRunningInstanceIsNoProblem) {
  DaemonProcess running(Joined(Joined(State("st"), Tls()), {"--metrics-listen", "127.0.0.1:0"}));
  ASSERT_NE(running.endpoint(), "") << running.process().Outputs();
  const std::string url = running.Logged("metrics");  // "http://127.0.0.1:7780/metrics"
  const std::string data = running.Logged("data_listen");
  const Arguments same =
      Joined(Joined(State("st"), Tls()), {"--listen", running.endpoint(), "--data-listen", data,
                                          "--metrics-listen", url.substr(7, url.find('/', 7) - 7)});
  const Finished checked = Check(same);
  EXPECT_EQ(checked.exit, Exit::WithCode(0)) << checked.error;
  // Another daemon's ports are.
  const Finished other = Check({"--listen", "127.0.0.1:0", "--data-listen", data});
  EXPECT_EQ(other.exit, Exit::WithCode(1));
  EXPECT_THAT(other.error, HasSubstr("in use by"));
}

TEST_F(StartCheckTest, EveryProblemIsReportedAtOnce) {
  const Finished checked =
      Check({"--listen", "127.0.0.1:0", "--cores", "4001-4002", "--port-file", "/nonexistent/port",
             "--metrics-listen", "192.0.2.77:0", "--metrics-open"});
  EXPECT_EQ(checked.exit, Exit::WithCode(1));
  EXPECT_THAT(checked.error,
              AllOf(HasSubstr("core 4001"), HasSubstr("/nonexistent"), HasSubstr("192.0.2.77")));
}

// What is accepted leaves nothing behind.
TEST_F(StartCheckTest, TheCheckCreatesNothing) {
  const Arguments good =
      Joined(Joined(State("new"), Tls()), {"--listen", "127.0.0.1:0", "--port-file", At("port")});
  const Finished checked = Check(good);
  EXPECT_EQ(checked.exit, Exit::WithCode(0)) << checked.error;
  EXPECT_EQ(checked.output, "ok\n");
  struct stat facts {};
  for (const char* name : {"new", "new.sock", "port"}) {
    EXPECT_NE(stat(At(name).c_str(), &facts), 0) << name;
  }
}

}  // namespace
}  // namespace phub::process
