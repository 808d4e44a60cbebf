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

// {0, 1, 3, 4, 5} -> "0, 1, 3-5".
std::string ListText(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t end = i + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    const bool is_run = end - i > 2;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ascending[i]);
    if (is_run) text += fmt::format("-{}", ascending[end - 1]);
    i = is_run ? end : i + 1;
  }
  return text;
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

std::vector<std::pair<std::string, std::string>> CoresBySumWay(const v1::JobInfo& job) {
  std::vector<std::pair<std::string, std::vector<int>>> ways;
  for (int core = 0; core < job.sum_ways_size(); ++core) {
    const auto is_same = [&](const auto& way) { return way.first == job.sum_ways(core); };
    auto way = std::ranges::find_if(ways, is_same);
    if (way == ways.end()) way = ways.insert(ways.end(), {job.sum_ways(core), {}});
    way->second.push_back(core);
  }
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [way, cores] : ways) texts.emplace_back(way, ListText(cores));
  return texts;
}

}  // namespace phub::client::cli
