#include "tests/process/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "tests/support/resident_bytes.h"

namespace phub::process {
namespace {

constexpr DurationNs kPollInterval = 5 * kMillisecond;

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWith(const std::vector<std::string>& added) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).substr(0, 5) != "PHUB_") environment.emplace_back(*entry);
  environment.insert(environment.end(), added.begin(), added.end());
  return environment;
}

Descriptor OutputFile() {
  Descriptor file(memfd_create("process-output", MFD_CLOEXEC));
  PHUB_CHECK(file, "memfd_create errno={}", errno);
  return file;
}

std::string ReadAll(const Descriptor& file) {
  std::string text;
  char block[4096];
  for (ssize_t count;
       (count = pread(file.get(), block, sizeof block, static_cast<off_t>(text.size()))) > 0;)
    text.append(block, static_cast<std::size_t>(count));
  return text;
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Exit& exit) {
  if (exit.signal != 0) return stream << "killed by signal " << exit.signal;
  return stream << "exit code " << exit.code;
}

Process Process::Start(const std::string& program, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment) {
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const std::vector<std::string> variables = EnvironmentWith(environment);
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> envp = Pointers(variables);
  Process process;
  process.output_ = OutputFile();
  process.error_ = OutputFile();
  const Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  sigset_t no_signals;
  sigemptyset(&no_signals);
  const pid_t parent = getpid();
  process.pid_ = fork();
  PHUB_CHECK(process.pid_ >= 0, "fork errno={}", errno);
  if (process.pid_ == 0) {  // only async-signal-safe calls from here on
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the parent died before prctl
    dup2(input.get(), STDIN_FILENO);
    dup2(process.output_.get(), STDOUT_FILENO);
    dup2(process.error_.get(), STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &no_signals, nullptr);
    execve(program.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_(other.exit_),
      output_(std::move(other.output_)),
      error_(std::move(other.error_)) {}

Process::~Process() {
  if (pid_ < 0 || exit_) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Signal(int number) const {
  if (pid_ > 0 && !exit_) kill(pid_, number);
}

std::optional<Exit> Process::Wait(DurationNs timeout) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + timeout;
  while (!exit_) {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    PHUB_CHECK(ended >= 0, "waitpid errno={}", errno);
    if (ended == pid_) {
      exit_ = WIFSIGNALED(status) ? Exit::BySignal(WTERMSIG(status))
                                  : Exit::WithCode(WEXITSTATUS(status));
    } else if (clock.Now() >= deadline) {
      break;
    } else {
      Sleep(kPollInterval);
    }
  }
  return exit_;
}

std::string Process::StandardOutput() const { return ReadAll(output_); }
std::string Process::StandardError() const { return ReadAll(error_); }

std::string Process::Outputs() const {
  return fmt::format("standard output:\n{}\nstandard error:\n{}", StandardOutput(),
                     StandardError());
}

bool Process::WaitForOutput(const std::string& text, DurationNs timeout) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + timeout;
  for (;;) {
    const bool ended = !IsRunning();  // before reading, to miss no output
    if (StandardOutput().find(text) != std::string::npos) return true;
    if (StandardError().find(text) != std::string::npos) return true;
    if (ended || clock.Now() >= deadline) return false;
    Sleep(kPollInterval);
  }
}

DurationNs Process::CpuTime() const {
  clockid_t clock{};
  timespec used{};
  PHUB_CHECK(clock_getcpuclockid(pid_, &clock) == 0 && clock_gettime(clock, &used) == 0, "pid={}",
             pid_);
  return used.tv_sec * kSecond + used.tv_nsec;
}

std::uint64_t Process::ResidentBytes() const { return ResidentBytesOf(pid_); }

Finished RunToEnd(const std::string& program, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment, DurationNs timeout) {
  Process process = Process::Start(program, arguments, environment);
  auto exit = process.Wait(timeout);
  if (!exit) {
    process.Signal(SIGKILL);
    exit = process.Wait(kSecond);
  }
  return {exit.value_or(Exit::BySignal(SIGKILL)), process.StandardOutput(),
          process.StandardError()};
}

void Sleep(DurationNs duration) {
  const timespec time{duration / kSecond, duration % kSecond};
  nanosleep(&time, nullptr);
}

}  // namespace phub::process
