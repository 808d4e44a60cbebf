#include "tests/process/stopped_thread.h"

#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/process/process.h"

namespace phub::process {
namespace {

constexpr DurationNs kStopTimeout = 60 * kSecond;

pid_t FindThread(pid_t process, const std::string& name) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", error)) {
    std::string comm;
    std::getline(std::ifstream(entry.path() / "comm"), comm);
    if (comm == name) return std::stoi(entry.path().filename().string());
  }
  return -1;
}

}  // namespace

StoppedThread::StoppedThread(pid_t process, const std::string& name)
    : thread_(FindThread(process, name)) {
  if (thread_ < 0) return;
  if (ptrace(PTRACE_SEIZE, thread_, nullptr, PTRACE_O_TRACESYSGOOD) != 0) {
    thread_ = -1;
    return;
  }
  stopped_ = ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 && WaitForStop(kStopTimeout);
}

StoppedThread::~StoppedThread() {
  if (thread_ < 0) return;
  if (!stopped_ && ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0) {
    WaitForStop(kStopTimeout);
  }
  ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
}

bool StoppedThread::WaitForStop(DurationNs timeout) {
  const SystemClock clock;
  for (const TimeNs deadline = clock.Now() + timeout; clock.Now() < deadline;) {
    const pid_t found = waitpid(thread_, &stop_status_, __WALL | WNOHANG);
    if (found == thread_) return WIFSTOPPED(stop_status_);
    if (found < 0) return false;
    Sleep(100 * kMicrosecond);
  }
  return false;
}

bool StoppedThread::RunToSystemCall(long number, DurationNs timeout) {
  const SystemClock clock;
  if (!stopped_) {
    stopped_ =
        ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 && WaitForStop(kStopTimeout);
    if (!stopped_) return false;
  }
  for (const TimeNs deadline = clock.Now() + timeout; clock.Now() < deadline;) {
    stopped_ = false;
    if (ptrace(PTRACE_SYSCALL, thread_, nullptr, nullptr) != 0) return false;
    if (!WaitForStop(deadline - clock.Now())) return false;
    stopped_ = true;
    if (WSTOPSIG(stop_status_) != (SIGTRAP | 0x80)) continue;
    __ptrace_syscall_info info{};
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread_, sizeof(info), &info) <= 0) return false;
    const bool enters = info.op == PTRACE_SYSCALL_INFO_ENTRY;
    if (enters && static_cast<long>(info.entry.nr) == number) return true;
  }
  return false;
}

}  // namespace phub::process
