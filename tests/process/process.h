// Starts a program, captures its output, waits for it with a deadline, and always ends it: for
// tests of the real binaries. One thread; the child dies with that thread.
//
//   auto daemon = Process::Start(PHUBD, {"--listen", "127.0.0.1:0"});
//   ASSERT_TRUE(daemon.WaitForOutput("serves on", 5 * kSecond)) << daemon.Outputs();
//   daemon.Signal(SIGKILL);
//   EXPECT_EQ(daemon.Wait(kSecond), Exit::BySignal(SIGKILL));
#pragma once

#include <sys/types.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::process {

// How a process ended.
struct Exit {
  int code = -1;   // -1: ended by a signal
  int signal = 0;  // 0: exited
  static Exit WithCode(int code) { return {code, 0}; }
  static Exit BySignal(int signal) { return {-1, signal}; }
  friend bool operator==(const Exit&, const Exit&) = default;
};
std::ostream& operator<<(std::ostream& stream, const Exit& exit);

class Process {
 public:
  // The environment is this process's without PHUB_* variables, plus `environment` ("NAME=value").
  // Standard input is empty. Aborts if the program cannot be started.
  static Process Start(const std::string& program, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment = {});
  ~Process();  // kills the process if it still runs
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int number) const;  // does nothing after the process has been waited for
  // Returns nothing if the process still runs after the timeout.
  std::optional<Exit> Wait(DurationNs timeout);
  bool IsRunning() { return !Wait(0).has_value(); }

  // The output so far.
  std::string StandardOutput() const;
  std::string StandardError() const;
  std::string Outputs() const;  // both, labelled, for messages of failed expectations
  // Waits for `text` in either output. Returns false after the timeout, or if the process ends
  // without it.
  bool WaitForOutput(const std::string& text, DurationNs timeout);

  // The exact CPU time of all its threads together.
  DurationNs CpuTime() const;
  // Its resident memory.
  std::uint64_t ResidentBytes() const;

 private:
  Process() = default;
  pid_t pid_ = -1;
  std::optional<Exit> exit_;
  Descriptor output_;  // anonymous files
  Descriptor error_;
};

// Starts a program and waits for its end. Kills it after `timeout`.
struct Finished {
  Exit exit;
  std::string output;
  std::string error;
};
Finished RunToEnd(const std::string& program, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment = {},
                  DurationNs timeout = 30 * kSecond);

void Sleep(DurationNs duration);

}  // namespace phub::process
