// --check-config says ok if and only if phubd would start with the same settings here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/net/listen.h"
#include "tests/process/daemon_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
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

TEST_F(StartCheckTest, FilesOfTheControlStoreInEtcd) {
  const auto store = [&](const std::string& key, const Arguments& more) {
    return Joined({"--control-store", "etcd:https://127.0.0.1:9", "--token-key", At(key),
                   "--control-socket", At("control.sock")},
                  more);
  };
  const Arguments certificate = {"--etcd-certificate", At("pki/server-n.crt")};
  const Arguments key = {"--etcd-key", At("pki/server-n.key")};
  // phubd would create the key, and waits for an etcd that does not answer.
  const Arguments right = Joined(Joined(certificate, key), {"--etcd-ca", At("pki/ca.crt")});
  EXPECT_EQ(Check(Joined(store("token.key", right), Tls())).exit, Exit::WithCode(0));
  std::ofstream(At("short.key")) << "short";
  ASSERT_EQ(chmod(At("short.key").c_str(), 0600), 0);
  ExpectBothRefuse(Joined(store("short.key", {}), Tls()), "has 5 bytes instead of 32");
  ASSERT_EQ(chmod(At("short.key").c_str(), 0644), 0);
  ExpectBothRefuse(Joined(store("short.key", {}), Tls()), "short.key");
  ExpectBothRefuse(Joined(store("token.key", {"--etcd-ca", "/nonexistent"}), Tls()),
                   "/nonexistent");
  std::ofstream(At("bad.crt")) << "nonsense\n";
  ExpectBothRefuse(Joined(store("token.key", {"--etcd-ca", At("bad.crt")}), Tls()),
                   "bad.crt does not begin with a certificate");
  const Arguments another = {"--etcd-key", At("pki/server-m.key")};
  ExpectBothRefuse(Joined(store("token.key", Joined(certificate, another)), Tls()),
                   "server-m.key is not the private key of");
  const Finished absent = Check(Joined(store("nowhere/token.key", {}), Tls()));
  EXPECT_EQ(absent.exit, Exit::WithCode(1));
  EXPECT_THAT(absent.error, HasSubstr("nowhere: No such file or directory"));
}

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

// Paths that are no files or directories, or cannot be created: for each setting, the check and the
// start agree, and the check leaves nothing behind.
class PathsOfEveryKind : public StartCheckTest {
 protected:
  // Creates the path in a folder of its own and returns it.
  static std::string Make(const std::string& kind, const std::string& folder) {
    namespace fs = std::filesystem;
    const std::string path = folder + "/" + kind;
    if (kind == "file") std::ofstream(path) << "nonsense\n";
    if (kind == "directory" || kind == "with-slash") {
      EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    }
    if (kind == "dangling") fs::create_symlink(folder + "/nowhere", path);
    if (kind == "loop") fs::create_symlink(path, path);
    if (kind == "link") {
      EXPECT_EQ(mkdir((folder + "/target").c_str(), 0700), 0);
      fs::create_symlink(folder + "/target", path);
    }
    if (kind == "socket") {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof address.sun_path - 1);
      const Descriptor bound(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    }
    if (kind == "in-a-file") {
      std::ofstream(path) << "nonsense\n";
      return path + "/x";
    }
    if (kind == "in-nothing") return path + "/x";
    if (kind == "with-slash") return path + "/";
    if (kind == "new-with-slash") return path + "/";
    if (kind == "long") return folder + "/" + std::string(300, 'x');
    if (kind == "proc") return "/proc/phub-check";
    return path;
  }
  static std::vector<std::string> Contents(const std::string& folder) {
    std::vector<std::string> paths;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder)) {
      paths.push_back(each.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  // Returns whether phubd starts.
  static bool Starts(const Arguments& arguments, std::string& output) {
    Process daemon = Process::Start(kPhubd, arguments);
    const bool serves = daemon.WaitForOutput("event=serving", kStartPatience);
    daemon.Signal(SIGTERM);  // it writes its port file before it handles signals
    const std::optional<Exit> exit = daemon.Wait(kStartPatience);
    output = daemon.Outputs();
    return serves && exit == Exit::WithCode(0);
  }
  void Compare(const std::string& setting, const std::string& kind) {
    SCOPED_TRACE(setting + " is " + kind);
    const TemporaryFolder folder;
    const std::string path = Make(kind, folder.path());
    Arguments arguments = {"--listen", "127.0.0.1:0", "--cores", "1",   "--pin",        "off",
                           "--shm",    "off",         "--verbs", "off", "--front=false"};
    arguments = Joined(arguments, ArgumentsFor(setting, path, folder.path()));
    const std::vector<std::string> before = Contents(folder.path());
    const Finished checked = Check(arguments);
    EXPECT_EQ(Contents(folder.path()), before);
    std::string output;
    const bool starts = Starts(arguments, output);
    EXPECT_EQ(checked.exit, Exit::WithCode(starts ? 0 : 1)) << checked.error << output;
    if (!starts) {
      EXPECT_THAT(checked.error, HasSubstr(path.substr(0, 60)));
    }
    starts ? ++started_ : ++refused_;
  }
  Arguments ArgumentsFor(const std::string& setting, const std::string& path,
                         const std::string& folder) const {
    const Arguments state = {"--state-dir", folder + "/st", "--control-socket", folder + "/s.sock"};
    const std::string certificate = At("pki/server-n.crt");
    const std::string key = At("pki/server-n.key");
    if (setting == "state_dir") {
      return {"--state-dir", path, "--control-socket", folder + "/s.sock"};
    }
    if (setting == "control_socket")
      return {"--state-dir", folder + "/st", "--control-socket", path};
    if (setting == "socket's folder") {
      return {"--state-dir", folder + "/st", "--control-socket", path + "/s.sock"};
    }
    if (setting == "port_file") return {"--port-file", path};
    if (setting == "tls_certificate") return {"--tls-certificate", path, "--tls-key", key};
    if (setting == "tls_key") return {"--tls-certificate", certificate, "--tls-key", path};
    if (setting == "tls_client_ca") return Joined(Joined(state, Tls()), {"--tls-client-ca", path});
    EXPECT_EQ(setting, "topology");
    return {"--racks", "127.0.0.1:1,127.0.0.1:2", "--rack-self", "127.0.0.1:1", "--topology", path};
  }

  int started_ = 0;
  int refused_ = 0;
};

TEST_F(PathsOfEveryKind, TheCheckAndTheStartAgree) {
  const std::vector<std::string> to_create = {
      "file",      "directory",  "dangling",   "link",           "socket", "absent",
      "in-a-file", "in-nothing", "with-slash", "new-with-slash", "long",   "proc"};
  for (const std::string& kind : to_create) {
    for (const char* setting : {"state_dir", "control_socket", "port_file"}) Compare(setting, kind);
  }
  for (const char* kind : {"file", "dangling", "link", "absent", "in-nothing"}) {
    Compare("socket's folder", kind);
  }
  for (const char* kind : {"directory", "loop", "socket"}) {
    for (const char* setting : {"tls_certificate", "tls_key", "tls_client_ca", "topology"}) {
      Compare(setting, kind);
    }
  }
  EXPECT_GE(started_, 10);
  EXPECT_GE(refused_, 30);
}

TEST_F(PathsOfEveryKind, AStateDirectoryThatAnotherDaemonUsesIsNamed) {
  DaemonProcess running(Joined(State("st"), Tls()));
  ASSERT_NE(running.endpoint(), "") << running.process().Outputs();
  const Arguments other = {"--state-dir", At("st"), "--control-socket", At("other.sock")};
  ExpectBothRefuse(other, "probably another phubd");
  ExpectBothRefuse({"--state-dir", At("st2"), "--control-socket", At("st.sock")},
                   "another phubd is using it");
  ASSERT_EQ(mkdir(At("st3").c_str(), 0700), 0);
  std::ofstream(At("st3/control.db")) << "this is not a database at all\n";
  ExpectBothRefuse({"--state-dir", At("st3"), "--control-socket", At("x.sock")}, "control.db");
  ASSERT_EQ(mkdir(At("st4").c_str(), 0700), 0);
  std::ofstream(At("st4/token.key")) << "short";
  ASSERT_EQ(chmod(At("st4/token.key").c_str(), 0600), 0);
  ExpectBothRefuse({"--state-dir", At("st4"), "--control-socket", At("x.sock")},
                   "token.key has 5 bytes");
}

TEST_F(PathsOfEveryKind, AStoreThatPhubdCannotUseIsNamed) {
  for (const char* name : {"st", "st2"}) {
    DaemonProcess daemon(Joined(State(name), Tls()));
    ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  }
  const Finished fine = Check(Joined(State("st"), Tls()));
  EXPECT_EQ(fine.exit, Exit::WithCode(0)) << fine.error;
  const auto unchanged = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(At("st"))) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("check"))) << entry.path();
    }
  };
  unchanged();

  std::filesystem::copy_file(At("st2/token.key"), At("st/token.key"),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectBothRefuse(State("st"), "token.key is not the key that control.db was written with");
  std::filesystem::remove(At("st/token.key"));
  ExpectBothRefuse(State("st"), "token.key is missing");
  EXPECT_FALSE(std::filesystem::exists(At("st/token.key")));
  unchanged();
}

}  // namespace
}  // namespace phub::process
