// phubd under a supervisor: its messages to systemd, and the settings that SIGHUP changes. The test
// acts as systemd.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>

#include "common/base/descriptor.h"
#include "tests/process/daemon_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr DurationNs kPatience = 60 * kSecond;  // much longer than any step takes

// The supervisor's end of the notification socket.
class Supervisor {
 public:
  Supervisor() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().c_str(), path().size());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  std::string path() const { return fmt::format("{}/notify", folder_.path()); }
  std::string variable() const { return fmt::format("NOTIFY_SOCKET={}", path()); }
  // The next message; empty if none arrives in time.
  std::string Next(DurationNs timeout = kPatience) const {
    pollfd readable{socket_.get(), POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(timeout / kMillisecond)) != 1) return "";
    std::array<char, 4096> message;
    const ssize_t count = recv(socket_.get(), message.data(), message.size(), 0);
    return count < 0 ? "" : std::string(message.data(), static_cast<std::size_t>(count));
  }
  // The next message other than WATCHDOG=1.
  std::string NextNews() const {
    std::string message = Next();
    while (message == "WATCHDOG=1") message = Next();
    return message;
  }

 private:
  TemporaryFolder folder_;
  Descriptor socket_;
};

TEST(PhubdService, TellsTheSupervisorWhatItDoes) {
  const Supervisor supervisor;
  DaemonProcess daemon({"--drain-timeout", "3s"}, {supervisor.variable()});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  const std::string ready = supervisor.Next();
  EXPECT_THAT(ready, StartsWith("READY=1\nSTATUS=phubd "));
  EXPECT_THAT(ready, HasSubstr(fmt::format("serves on {}", daemon.endpoint())));
  daemon.process().Signal(SIGHUP);
  EXPECT_THAT(supervisor.Next(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_THAT(supervisor.Next(), StartsWith("READY=1"));
  daemon.process().Signal(SIGTERM);
  // Expect: it asks for the drain timeout plus a margin.
  EXPECT_EQ(supervisor.Next(), "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=13000000");
  EXPECT_EQ(daemon.process().Wait(kPatience), Exit::WithCode(0));
}

TEST(PhubdService, ShowsThatItIsAliveAsOftenAsItWasAsked) {
  const Supervisor supervisor;
  DaemonProcess daemon({}, {supervisor.variable(), "WATCHDOG_USEC=1000000"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  EXPECT_THAT(supervisor.Next(), StartsWith("READY=1"));
  // The daemon sends WATCHDOG=1 twice per period. The first message can be late, so four messages
  // take at least one and a half periods.
  const SystemClock clock;
  // Messages that arrived while this test was suspended.
  while (!supervisor.Next(0).empty()) continue;
  const TimeNs started = clock.Now();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(supervisor.Next(), "WATCHDOG=1");
  EXPECT_GE(clock.Now() - started, kSecond);
  // A stopped daemon sends nothing.
  daemon.process().Signal(SIGSTOP);
  while (!supervisor.Next(100 * kMillisecond).empty()) continue;
  EXPECT_EQ(supervisor.Next(2 * kSecond), "");
  daemon.process().Signal(SIGCONT);
}

TEST(PhubdService, AnotherProcesssWatchdogIsNotItsOwn) {
  const Supervisor supervisor;
  DaemonProcess daemon({}, {supervisor.variable(), "WATCHDOG_USEC=200000", "WATCHDOG_PID=1"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  EXPECT_THAT(supervisor.Next(), StartsWith("READY=1"));
  EXPECT_EQ(supervisor.Next(kSecond), "");
}

TEST(PhubdService, ASupervisorThatIsGoneIsNoMatter) {
  for (const char* address : {"NOTIFY_SOCKET=/nonexistent/socket", "NOTIFY_SOCKET=@nobody-here",
                              "NOTIFY_SOCKET=nonsense", "NOTIFY_SOCKET="}) {
    DaemonProcess daemon({}, {address});
    ASSERT_NE(daemon.endpoint(), "") << address << daemon.process().Outputs();
    daemon.process().Signal(SIGTERM);
    EXPECT_EQ(daemon.process().Wait(kPatience), Exit::WithCode(0)) << address;
  }
}

TEST(PhubdReload, TakesOverWhatItCanAndNamesTheRest) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("phubd.toml", "log_level = \"warning\"\n");
  DaemonProcess daemon({"--config", file});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  EXPECT_THAT(daemon.process().StandardError(), Not(HasSubstr("level=info")));
  folder.Write("phubd.toml",
               "log_level = \"info\"\ndrain_timeout = \"77s\"\nmemory_max = \"1GiB\"\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.process().WaitForOutput(
      "event=reloaded changed=\"drain_timeout,log_level\" unchanged_until_restart=\"memory_max\"",
      kPatience))
      << daemon.process().Outputs();
  // The new drain_timeout applies to an administrator's drain without a deadline.
  const Finished drained = daemon.Ask({"server", "drain", "-o", "json"});
  EXPECT_THAT(drained.output, ::testing::ContainsRegex("\"drain_deadline_ns\": \"7[67][0-9]{9}\""));
}

TEST(PhubdReload, AFileThatIsWrongChangesNothing) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("phubd.toml", "log_level = \"info\"\n");
  DaemonProcess daemon({"--config", file});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  folder.Write("phubd.toml", "log_level = \"error\"\nlisten = 7\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.process().WaitForOutput(
      fmt::format("event=reload_refused {}:2:10: listen = 7 is a number", file), kPatience))
      << daemon.process().Outputs();
  EXPECT_EQ(daemon.Ask({"health"}).exit, Exit::WithCode(0));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(kPatience), Exit::WithCode(0));
  // The log level is still info.
  EXPECT_THAT(daemon.process().StandardError(), HasSubstr("event=stopped"));
}

}  // namespace
}  // namespace phub::process
