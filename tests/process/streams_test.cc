// Programs and libphub with output that cannot be written, and with closed standard streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/process/daemon_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

Finished Shell(const std::string& command) { return RunToEnd("/bin/sh", {"-c", command}); }

std::string Phubctl(const DaemonProcess& daemon, const std::string& rest) {
  return std::string(kPhubctl) + " -e " + daemon.endpoint() + " " + rest;
}

TEST(Output, ToAFullDiskOrAClosedPipeIsAnErrorWithAMessage) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  const std::string phubd = std::string(kPhubd) + " --help";
  for (const std::string& command :
       {Phubctl(daemon, "job list"), Phubctl(daemon, "stats"), Phubctl(daemon, "stats -o json"),
        Phubctl(daemon, "server list -o json"), Phubctl(daemon, "top --once --interval 100ms"),
        Phubctl(daemon, "health"), Phubctl(daemon, "--help"), Phubctl(daemon, "completion bash"),
        Phubctl(daemon, "plan draw --help"), phubd}) {
    SCOPED_TRACE(command);
    const Finished full = Shell("exec " + command + " >/dev/full");
    EXPECT_EQ(full.exit, Exit::WithCode(1));
    EXPECT_THAT(full.error, HasSubstr("cannot write the output: No space left on device"));
    const Finished closed = Shell("(" + command + "; echo code=$? >&2) | true");
    // A program that is faster than `true` has written to the pipe before it was closed.
    if (closed.error.find("code=0") == std::string::npos) {
      EXPECT_THAT(closed.error, HasSubstr("cannot write the output: Broken pipe"));
      EXPECT_THAT(closed.error, HasSubstr("code=1"));
    }
  }
}

TEST(Output, OfErrorsToAFullDiskNeverAborts) {
  for (const char* const arguments : {"no-such-command", "-e 127.0.0.1:1 --timeout 100ms health"}) {
    const Finished finished =
        Shell(std::string("exec ") + kPhubctl + " " + arguments + " >/dev/full 2>/dev/full");
    EXPECT_GT(finished.exit.code, 0) << arguments;
  }
}

TEST(ClosedStreams, AreAsIfOutputCouldNotBeWritten) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  const Finished written = Shell("exec " + Phubctl(daemon, "job list") + " <&-");
  EXPECT_EQ(written.exit, Exit::WithCode(0)) << written.error;
  const Finished lost = Shell("exec " + Phubctl(daemon, "job list") + " <&- >&-");
  EXPECT_EQ(lost.exit, Exit::WithCode(1));
  EXPECT_THAT(lost.error, HasSubstr("cannot write the output: Bad file descriptor"));
  EXPECT_EQ(Shell("exec " + Phubctl(daemon, "job list") + " <&- >&- 2>&-").exit, Exit::WithCode(1));
}

// A daemon and workers without standard streams train; the workers' lines go nowhere, and in no
// socket that has the number of standard error.
TEST(ClosedStreams, AreHarmlessForDaemonsAndWorkers) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/port";
  Process daemon = Process::Start(
      "/bin/sh", {"-c", std::string("exec ") + kPhubd + " --listen 127.0.0.1:0 --port-file " +
                            file + " <&- >&- 2>&-"});
  std::string port;
  for (int i = 0; i < 200 && port.empty(); ++i) {
    Sleep(50 * kMillisecond);
    port = Shell("cat " + file + " 2>/dev/null").output;
  }
  ASSERT_NE(port, "");
  port.pop_back();  // the line's end
  for (const char* const transport : {"shm", "tcp"}) {
    const Finished worker =
        Shell(std::string("exec ") + PHUB_TEST_DIGITS + " --data " + PHUB_TEST_DIGITS_DATA +
              " --endpoint 127.0.0.1:" + port + " --job " + transport +
              " --world-size 1 --iterations 20 --transport " + transport + " <&- >&- 2>&-");
    EXPECT_EQ(worker.exit, Exit::WithCode(0)) << transport;
  }
  EXPECT_TRUE(daemon.IsRunning());
}

}  // namespace
}  // namespace phub::process
