#include "client/cli/job_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr std::int64_t kStalledIterations = 10;
constexpr DurationNs kStalledAtLeast = 5 * kSecond;

bool IsWaiting(const v1::JobInfo& job) {
  return std::any_of(job.workers().begin(), job.workers().end(),
                     [](const v1::WorkerInfo& worker) { return worker.state() == "awaited"; });
}

}  // namespace

bool IsStalled(const v1::JobInfo& job) {
  return job.state() == "running" && job.iteration_ns() > 0 &&
         job.iteration_age_ns() >
             std::max(kStalledAtLeast, kStalledIterations * job.iteration_ns());
}

std::string StateText(const v1::JobInfo& job) {
  if (job.state() != "running") return job.state();
  return IsWaiting(job) ? "waiting" : IsStalled(job) ? "stalled" : job.state();
}

std::string IterationText(const v1::JobInfo& job) {
  return job.iteration() == 0 ? "-" : fmt::format("{}", job.iteration());
}

std::string IterationTimeText(const v1::JobInfo& job) {
  return job.iteration_ns() == 0 ? "-" : HumanDuration(job.iteration_ns());
}

}  // namespace phub::client::cli
