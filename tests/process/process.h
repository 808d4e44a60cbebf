// Starts a program, feeds it nothing, keeps what it prints, waits for it with a deadline and never
// leaves it behind: for tests of the real binaries. One thread; the child dies with that thread.
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
  int code = -1;   // -1: by a signal
  int signal = 0;  // 0: by itself
  static Exit WithCode(int code) { return {code, 0}; }
  static Exit BySignal(int signal) { return {-1, signal}; }
  friend bool operator==(const Exit&, const Exit&) = default;
};
std::ostream& operator<<(std::ostream& stream, const Exit& exit);

class Process {
 public:
  // The environment is this process's, without any PHUB_* variable, and then `environment`
  // ("NAME=value"). Standard input is empty. Aborts if the program cannot be started.
  static Process Start(const std::string& program, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment = {});
  ~Process();  // kills it if it still runs
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int number) const;  // nothing once it has been waited for
  // Nothing if it still runs when the time is up.
  std::optional<Exit> Wait(DurationNs timeout);
  bool IsRunning() { return !Wait(0).has_value(); }

  // What it has printed until now.
  std::string StandardOutput() const;
  std::string StandardError() const;
  std::string Outputs() const;  // both, labelled: for messages of failed expectations
  // True once `text` is in either output; false if the time is up or the process ended without it.
  bool WaitForOutput(const std::string& text, DurationNs timeout);

  // CPU time that it has used, all its threads together, exact.
  DurationNs CpuTime() const;
  // Memory that it has resident.
  std::uint64_t ResidentBytes() const;

 private:
  Process() = default;
  pid_t pid_ = -1;
  std::optional<Exit> exit_;
  Descriptor output_;  // files without a name
  Descriptor error_;
};

// Start, and Wait for the end: for programs that answer and leave. Kills it after `timeout`.
struct Finished {
  Exit exit;
  std::string output;
  std::string error;
};
Finished RunToEnd(const std::string& program, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment = {},
                  DurationNs timeout = 30 * kSecond);

}  // namespace phub::process
