// Log lines: what a name can put into them, and a reader that stalls. Each test logs in a process
// of its own, whose standard error is a pipe.
#include "common/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub {
namespace {

class LogTest : public ::testing::Test {
 protected:
  // Runs the function in another process, which exits with its result.
  void Start(const std::function<int()>& run) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = Descriptor(ends[0]);
    const Descriptor writer(ends[1]);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ > 0) return;
    dup2(writer.get(), STDERR_FILENO);
    _exit(run());
  }
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    for (;;) {
      const ssize_t bytes = read(reader_.get(), buffer, sizeof buffer);
      if (bytes <= 0) return all;
      all.append(buffer, static_cast<std::size_t>(bytes));
    }
  }

 private:
  Descriptor reader_;
  pid_t child_ = -1;
};

TEST_F(LogTest, ThreadsMayLogWhileTheProcessExits) {
  Start([] {
    struct AtExit {
      ~AtExit() { LogWarning("event=late"); }
    };
    static const AtExit at_exit;  // made before the logger, so it is destroyed later
    LogWarning("event=early");
    std::exit(0);
    return 1;
  });
  EXPECT_THAT(ReadAll(), ::testing::AllOf(::testing::HasSubstr("event=early"),
                                          ::testing::HasSubstr("event=late")));
  EXPECT_EQ(Wait(), 0);
}

TEST_F(LogTest, ANameCannotForgeAFieldOrALine) {
  Start([] {
    const std::string name = "a\" rank=\"0\"\nlevel=error \x1b[2J";
    LogInfo("event=job_created job=\"{}\" ranks={} host=\"{}\"", name, 2, "node5");
    return 0;
  });
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(ReadAll(),
              ::testing::EndsWith(
                  " level=info event=job_created job=\"a\\\" rank=\\\"0\\\"\\x0alevel=error "
                  "\\x1b[2J\" ranks=2 host=\"node5\"\n"));
}

// A pipe holds 64 KiB; nothing reads it until the child has ended.
TEST_F(LogTest, AReaderThatStallsBlocksNoThread) {
  constexpr std::size_t kLines = 20'000;
  Start([] {
    StartLogThread(100);
    for (std::size_t i = 0; i < kLines; ++i)
      LogInfo("event=line number={} fill=\"{}\"", i, std::string(100, 'x'));
    if (DroppedLogLines() == 0) return 1;
    return FlushLog(50 * kMillisecond) ? 2 : 0;
  });
  EXPECT_EQ(Wait(), 0);
  const std::string all = ReadAll();
  EXPECT_GT(all.size(), 60'000u) << "the pipe is full";
  EXPECT_NE(all.find("event=line number="), std::string::npos);
}

TEST_F(LogTest, ALineSaysHowManyWereDropped) {
  int logged[2];
  ASSERT_EQ(pipe2(logged, O_CLOEXEC), 0);
  Start([&logged] {
    StartLogThread(100);
    for (int i = 0; i < 5000; ++i) LogInfo("event=line fill=\"{}\"", std::string(100, 'x'));
    if (write(logged[1], "l", 1) != 1) return 1;
    if (!FlushLog(20 * kSecond)) return 2;
    LogInfo("event=last");
    return FlushLog(20 * kSecond) ? 0 : 3;
  });
  char byte = 0;
  ASSERT_EQ(read(logged[0], &byte, 1), 1);  // nobody reads the log before
  const std::string all = ReadAll();
  EXPECT_EQ(Wait(), 0);
  EXPECT_NE(all.find(" level=warning event=log_lines_dropped count="), std::string::npos);
  EXPECT_TRUE(all.ends_with(" level=info event=last\n"));
  close(logged[0]);
  close(logged[1]);
}

TEST_F(LogTest, EveryLineIsWrittenByTheThread) {
  Start([] {
    StartLogThread(10'000);
    SetLogLevel(LogLevel::kWarning);
    LogInfo("event=left_out");
    for (int i = 0; i < 100; ++i) LogWarning("event=line number={}", i);
    return FlushLog(20 * kSecond) && DroppedLogLines() == 0 ? 0 : 1;
  });
  EXPECT_EQ(Wait(), 0);
  const std::string all = ReadAll();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 100);
  EXPECT_THAT(all, ::testing::EndsWith("event=line number=99\n"));
}

TEST_F(LogTest, LinesGoToTheSinkUntilItIsRemoved) {
  Start([] {
    std::string seen;
    SetLogSink(
        [](void* context, LogLevel level, const std::string& line) {
          *static_cast<std::string*>(context) += (level == LogLevel::kWarning ? "W " : "? ") + line;
        },
        &seen);
    SetLogLevel(LogLevel::kWarning);
    LogInfo("event=left_out");
    LogWarning("event=seen name={}", "a b");
    SetLogSink(nullptr, nullptr);
    LogWarning("event=written");
    return seen == "W event=seen name=a b" ? 0 : 1;
  });
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(ReadAll(), ::testing::EndsWith("level=warning event=written\n"));
}

}  // namespace
}  // namespace phub
