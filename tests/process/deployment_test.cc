// Deployment as people have it: state behind a link, secrets of a Kubernetes volume, and a root
// file system that nobody can write.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/process/identity_fixture.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr DurationNs kPatience = 60 * kSecond;

TEST(StateBehindALink, IsUsedAndMayMove) {
  IdentityDaemon daemon({.prepare = [](const std::string& folder) {
    fs::create_directories(folder + "/disk/phub");
    fs::permissions(folder + "/disk/phub", fs::perms::owner_all);
    fs::create_directory_symlink("disk/phub", folder + "/state");
  }});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  ASSERT_EQ(daemon.AskAsRoot({"tenant", "create", "acme"}).exit, Exit::WithCode(0));
  const std::string token = daemon.IssueToken("acme", {"--tenant", "acme"});
  daemon.Kill();
  // It moves to another disk, as its administrator would do it.
  const std::string link = daemon.folder() + "/state";
  fs::rename(daemon.folder() + "/disk", daemon.folder() + "/other");
  fs::remove(link);
  fs::create_directory_symlink(daemon.folder() + "/other/phub", link);
  ASSERT_TRUE(daemon.Start()) << daemon.process().Outputs();
  EXPECT_THAT(daemon.AskAsRoot({"tenant", "list"}).output, HasSubstr("acme"));
  const Finished who = daemon.Ask(token, {"whoami"});
  EXPECT_THAT(who.output, HasSubstr("acme")) << who.error;
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(daemon.folder() + "/other/phub/control.db"));
}

TEST(ContextsBehindALink, StayThere) {
  const TemporaryFolder folder;
  const std::string link = folder.path() + "/contexts.toml";
  fs::create_directory(folder.path() + "/dotfiles");
  const std::string file = folder.Write("dotfiles/contexts.toml", "");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("dotfiles/contexts.toml", link);
  const std::vector<std::string> environment = {"PHUB_CONTEXTS=" + link};
  const Finished set =
      RunToEnd(kPhubctl, {"context", "set", "rack", "-e", "node1:7700"}, environment);
  ASSERT_EQ(set.exit, Exit::WithCode(0)) << set.error;
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_THAT(RunToEnd(kPhubctl, {"context", "list"}, environment).output, HasSubstr("node1:7700"));
}

// The files of a Kubernetes volume: tls.key -> ..data/tls.key, ..data -> ..2026_1. An update makes
// another folder and replaces the link ..data.
class KubernetesVolume {
 public:
  explicit KubernetesVolume(const std::string& path) : path_(path) { fs::create_directory(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Update(const std::vector<std::pair<std::string, std::string>>& files) {
    const std::string before = current_;
    current_ = "..2026_" + std::to_string(++updates_);
    fs::create_directory(File(current_));
    for (const auto& [name, from] : files) {
      const std::string to = File(current_) + "/" + name;
      fs::copy_file(from, to);
      fs::permissions(to, fs::perms::owner_read | fs::perms::group_read);  // defaultMode: 0440
      if (before.empty()) fs::create_symlink("..data/" + name, File(name));
    }
    fs::create_symlink(current_, File("..data_tmp"));
    fs::rename(File("..data_tmp"), File("..data"));
    if (!before.empty()) fs::remove_all(File(before));
  }

 private:
  const std::string path_;
  std::string current_;
  int updates_ = 0;
};

TEST(SecretsOfAKubernetesVolume, AreReplacedWhileTheDaemonRuns) {
  if (geteuid() != 0) GTEST_SKIP() << "a volume's files belong to root";
  const TemporaryFolder folder;
  // Two authorities: a client that trusts the second one cannot connect before the update.
  const auto authority = [&](const std::string& name) {
    const std::string at = folder.path() + "/" + name;
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"pki", "init", at},
             {"pki", "issue", at, "server", "node", "--host", "127.0.0.1"},
             {"pki", "issue", at, "admin", "me"}}) {
      const Finished made = RunToEnd(kPhubctl, arguments);
      EXPECT_EQ(made.exit, Exit::WithCode(0)) << made.error << made.output;
    }
    return at;
  };
  const std::string first = authority("first");
  const std::string second = authority("second");
  KubernetesVolume volume(folder.path() + "/volume");
  const auto update = [&](const std::string& from) {
    volume.Update({{"tls.crt", from + "/server-node.crt"},
                   {"tls.key", from + "/server-node.key"},
                   {"ca.crt", from + "/ca.crt"}});
  };
  update(first);
  DaemonProcess daemon({"--state-dir", folder.path() + "/state", "--control-socket",
                        folder.path() + "/control.sock", "--tls-certificate",
                        volume.File("tls.crt"), "--tls-key", volume.File("tls.key"),
                        "--tls-client-ca", volume.File("ca.crt")});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  const auto works = [&](const std::string& pki) {
    return daemon
               .Ask({"--ca-file", pki + "/ca.crt", "--certificate", pki + "/admin-me.crt", "--key",
                     pki + "/admin-me.key", "whoami"})
               .exit == Exit::WithCode(0);
  };
  EXPECT_TRUE(works(first));
  EXPECT_FALSE(works(second));
  // The window between two reads is too short to be hit here; this checks an ordinary update.
  update(second);
  const SystemClock clock;
  const TimeNs end = clock.Now() + kPatience;
  while (!works(second) && clock.Now() < end) Sleep(kSecond / 10);
  EXPECT_TRUE(works(second)) << daemon.process().Outputs();
  EXPECT_FALSE(works(first));
  EXPECT_THAT(daemon.process().Outputs(), Not(HasSubstr("event=certificate_refused")));
}

// As in `docker run --read-only`: only the folder of the test can be written.
TEST(AReadOnlyRoot, ServesAJobWithIdentitiesAndCheckpoints) {
  if (geteuid() != 0) GTEST_SKIP() << "mounts need root";
  const TemporaryFolder folder;
  const auto start = [&](const std::string& program, const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {
        "--mount",
        "bash",
        "-ec",
        "mount --make-rprivate /\n"
        "mount --bind \"$0\" \"$0\"\n"
        "mount -o remount,bind,ro /\n"
        "if mountpoint -q /tmp; then mount -o remount,bind,ro /tmp; fi\n"
        "for path in /etc /tmp; do if [ -w \"$path\" ]; then exit 99; fi; done\n"
        "cd \"$0\"\n"
        "exec \"$@\"",
        folder.path(),
        program};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return Process::Start("/usr/bin/unshare", all);
  };
  const std::string port_file = folder.path() + "/port";
  Process daemon = start(
      kPhubd, {"--listen", "127.0.0.1:0", "--port-file", port_file, "--state-dir",
               folder.path() + "/state", "--control-socket", folder.path() + "/control.sock"});
  ASSERT_TRUE(daemon.WaitForOutput("serves on", kPatience)) << daemon.Outputs();
  std::string port;
  std::ifstream(port_file) >> port;
  const std::string socket = "unix:" + folder.path() + "/control.sock";
  const auto ask = [&](const std::vector<std::string>& arguments) {
    Process asked = start(kPhubctl, arguments);
    const std::optional<Exit> exit = asked.Wait(kPatience);
    EXPECT_EQ(exit, Exit::WithCode(0)) << asked.Outputs();
  };
  ask({"-e", socket, "tenant", "create", "acme"});
  ask({"-e", socket, "token", "issue", "--tenant", "acme", "--file", "token"});
  Process worker = StartTrainer(
      {.endpoint = "127.0.0.1:" + port,
       .job = "digits",
       .iterations = 1000000,
       .more = {"--pause-ms", "20"},
       .environment = {"PHUB_TOKEN_FILE=" + folder.path() + "/token", "PHUB_TENANT=acme"}});
  ASSERT_TRUE(WaitForIteration(worker, 3, kPatience)) << worker.Outputs();
  ask({"-e", socket, "--tenant", "acme", "job", "save", "digits", "checkpoint"});
  EXPECT_TRUE(fs::exists(folder.path() + "/checkpoint"));
}

}  // namespace
}  // namespace phub::process
