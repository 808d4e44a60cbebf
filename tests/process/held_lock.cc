#include "tests/process/held_lock.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <utility>

#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

constexpr int kJobsMax = 10;
constexpr int kCallsMax = 100;              // of one job
constexpr DurationNs kQuiet = 5 * kSecond;  // without a system call, the job has ended

}  // namespace

bool ControlIsStuck(const std::string& endpoint) {
  const Finished call =
      RunToEnd(kPhubctl, {"--endpoint", endpoint, "--timeout", "1s", "job", "list"});
  return call.error.find("did not answer within") != std::string::npos;
}

HeldLock::HeldLock(pid_t phubd, std::string endpoint)
    : endpoint_(std::move(endpoint)), control_(phubd, "control") {
  if (!control_.stopped()) return;
  for (int job = 0; job < kJobsMax && !held_; ++job) held_ = StopDuring(job);
}

bool HeldLock::StopDuring(int job) {
  jobs_.push_back(std::async(std::launch::async, [this, job] {
    return TrainUndisturbed(endpoint_,
                            {.job = fmt::format("short-{}", job), .rank = 0, .world_size = 1}, 5);
  }));
  for (int call = 0; call < kCallsMax && control_.RunToSystemCall(SYS_write, kQuiet); ++call) {
    if (ControlIsStuck(endpoint_)) return true;
  }
  return false;
}

}  // namespace phub::process
