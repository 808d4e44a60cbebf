#include "client/cli/top_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "client/cli/job_state.h"
#include "client/cli/output.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;
using Json = nlohmann::ordered_json;

std::string GigabytesPerSecond(double bytes_per_second) {
  if (bytes_per_second < 0) return "-";
  return fmt::format("{:.3f}", bytes_per_second / 1e9);
}

// One number for each core loop; with many core loops, their mean and the largest.
std::string BusyText(const std::vector<double>& shares) {
  constexpr std::size_t kShownMax = 4;
  if (shares.empty()) return "-";
  if (shares.size() > kShownMax && *std::min_element(shares.begin(), shares.end()) >= 0) {
    double sum = 0;
    for (const double share : shares) sum += share;
    return fmt::format("mean {:.0f}%, max {:.0f}%", sum * 100 / static_cast<double>(shares.size()),
                       *std::max_element(shares.begin(), shares.end()) * 100);
  }
  std::string text;
  for (const double share : shares) {
    text += share < 0 ? " -" : fmt::format(" {:.0f}%", share * 100);
  }
  return text.substr(1);
}

std::string StragglerText(const Straggler& straggler) {
  if (!straggler.known) return "-";
  return fmt::format("rank {} {:.0f}% +{}", straggler.rank, straggler.share * 100,
                     HumanDuration(straggler.late_by));
}

// The line in reverse, without its end.
std::string Highlighted(const std::string& line) { return "\x1b[7m" + line + "\x1b[0m"; }

}  // namespace

TopOrder NextOrder(TopOrder order) {
  return static_cast<TopOrder>((static_cast<std::size_t>(order) + 1) % std::size(kTopOrderNames));
}

Straggler TopFrame::StragglerOf(const TopJobName& name) const {
  const auto then = before_.jobs.find(name);
  return then == before_.jobs.end() ? Straggler{}
                                    : FindStraggler(then->second, after_.jobs.at(name));
}

double TopFrame::Weight(const JobEntry& job, TopOrder order) const {
  const auto& [name, figures] = job;
  switch (order) {
    case TopOrder::kName: return 0;
    case TopOrder::kMemory: return static_cast<double>(figures.memory_bytes);
    case TopOrder::kTraffic: return JobRate(name, &JobFigures::gradient_bytes);
    case TopOrder::kTime: return static_cast<double>(figures.info.iteration_ns());
    case TopOrder::kState:
      return IsStalled(figures.info) ? 2 : StateText(figures.info) != "running";
  }
  return 0;
}

std::vector<const TopFrame::JobEntry*> TopFrame::JobsIn(TopOrder order) const {
  std::vector<const JobEntry*> jobs;
  for (const JobEntry& job : after_.jobs) jobs.push_back(&job);
  std::stable_sort(jobs.begin(), jobs.end(), [&](const JobEntry* a, const JobEntry* b) {
    return Weight(*a, order) > Weight(*b, order);
  });
  return jobs;
}

std::string TopFrame::Text(std::size_t columns, TopOrder order, bool highlight) const {
  return fmt::format("{}\n{}\n{}", DaemonsTable(columns), TenantsTable(columns),
                     JobsTable(columns, order, highlight));
}

std::vector<double> TopFrame::BusyShares(const std::string& endpoint) const {
  const DaemonFigures& now = after_.daemons.at(endpoint);
  std::vector<double> shares(now.busy_ns.size(), -1);
  const auto then = before_.daemons.find(endpoint);
  if (then == before_.daemons.end()) return shares;
  for (std::size_t core = 0; core < shares.size() && core < then->second.busy_ns.size(); ++core) {
    const double rate = PerSecond(then->second.busy_ns[core], now.busy_ns[core], elapsed_);
    shares[core] = rate < 0 ? -1 : std::min(rate / 1e9, 1.0);
  }
  return shares;
}

std::string TopFrame::DaemonsTable(std::size_t columns) const {
  Table table({{"DAEMON"},
               {"STATE"},
               {"MEMORY", Align::kLeft, /*optional=*/1},
               {"IN GB/s", Align::kRight, /*optional=*/2},
               {"OUT GB/s", Align::kRight, /*optional=*/3},
               {"CORES BUSY"}});
  for (const auto& [endpoint, daemon] : after_.daemons) {
    if (!daemon.status.ok()) {
      table.Add({endpoint, "does not answer", "-", "-", "-", "-"});
      continue;
    }
    // A daemon does not show the counters of its core loops to tenants.
    const auto rate = [&](auto member) {
      return daemon.busy_ns.empty() ? -1 : Rate(before_.daemons, after_.daemons, endpoint, member);
    };
    table.Add({endpoint, daemon.server.state(),
               fmt::format("{} of {}", HumanBytes(daemon.server.memory_bytes()),
                           HumanBytes(daemon.server.memory_bytes_max())),
               GigabytesPerSecond(rate(&DaemonFigures::gradient_bytes)),
               GigabytesPerSecond(rate(&DaemonFigures::reply_bytes)),
               BusyText(BusyShares(endpoint))});
  }
  return table.Text(columns);
}

std::string TopFrame::TenantsTable(std::size_t columns) const {
  Table table({{"TENANT"},
               {"JOBS", Align::kRight, /*optional=*/2},
               {"WORKERS", Align::kRight, /*optional=*/1},
               {"MEMORY"},
               {"IN GB/s", Align::kRight, /*optional=*/3},
               {"OUT GB/s", Align::kRight, /*optional=*/4}});
  for (const auto& [name, tenant] : after_.tenants) {
    table.Add({name, fmt::format("{}", tenant.jobs), fmt::format("{}", tenant.live_workers),
               fmt::format("{} of {}", HumanBytes(tenant.memory_bytes),
                           HumanBytes(tenant.memory_quota_bytes)),
               GigabytesPerSecond(
                   Rate(before_.tenants, after_.tenants, name, &TenantFigures::gradient_bytes)),
               GigabytesPerSecond(
                   Rate(before_.tenants, after_.tenants, name, &TenantFigures::reply_bytes))});
  }
  return table.Text(columns);
}

std::string TopFrame::JobsTable(std::size_t columns, TopOrder order, bool highlight) const {
  Table table({{"TENANT/JOB"},
               {"STATE"},
               {"WORKERS", Align::kRight},
               {"ITERATION", Align::kRight},
               {"EACH", Align::kRight, /*optional=*/1},
               {"MEMORY", Align::kRight, /*optional=*/5},
               {"IN GB/s", Align::kRight, /*optional=*/3},
               {"OUT GB/s", Align::kRight, /*optional=*/4},
               {"ROUNDS/s", Align::kRight, /*optional=*/6},
               {"STRAGGLER", Align::kLeft, /*optional=*/2},
               {"HOST", Align::kLeft, /*optional=*/7}});
  const std::vector<const JobEntry*> jobs = JobsIn(order);
  for (const JobEntry* const entry : jobs) {
    const auto& [name, job] = *entry;
    const double rounds = JobRate(name, &JobFigures::rounds);
    const Straggler straggler = StragglerOf(name);
    table.Add({name.first + "/" + name.second, StateText(job.info),
               fmt::format("{}/{}", job.live, job.world_size), IterationText(job.info),
               IterationTimeText(job.info), HumanBytes(job.memory_bytes),
               GigabytesPerSecond(JobRate(name, &JobFigures::gradient_bytes)),
               GigabytesPerSecond(JobRate(name, &JobFigures::reply_bytes)),
               rounds < 0 ? "-" : fmt::format("{:.0f}", rounds), StragglerText(straggler),
               straggler.known ? straggler.host : "-"});
  }
  const std::string text = table.Text(columns);
  if (!highlight) return text;
  std::string marked;
  std::size_t begin = 0;
  for (std::size_t line = 0; begin < text.size(); ++line) {  // line 0 is the title
    const std::size_t end = text.find('\n', begin);
    const std::string row = text.substr(begin, end - begin);
    const bool stalled = line > 0 && IsStalled(jobs[line - 1]->second.info);
    marked += (stalled ? Highlighted(row) : row) + "\n";
    begin = end + 1;
  }
  return marked;
}

// Unknown rates are null.
Json Number(double value) { return value < 0 ? Json(nullptr) : Json(value); }

std::string TopFrame::JsonText(TopOrder order) const {
  Json daemons = Json::array(), tenants = Json::array(), jobs = Json::array();
  for (const auto& [endpoint, daemon] : after_.daemons) {
    Json shares = Json::array();
    for (const double share : BusyShares(endpoint)) shares.push_back(Number(share));
    daemons.push_back({{"endpoint", endpoint},
                       {"error", daemon.status.ok() ? "" : daemon.status.error_message()},
                       {"state", daemon.server.state()},
                       {"memory_bytes", daemon.server.memory_bytes()},
                       {"memory_bytes_max", daemon.server.memory_bytes_max()},
                       {"core_busy_shares", shares}});
  }
  for (const auto& [name, tenant] : after_.tenants) {
    tenants.push_back(
        {{"tenant", name},
         {"jobs", tenant.jobs},
         {"live_workers", tenant.live_workers},
         {"memory_bytes", tenant.memory_bytes},
         {"memory_quota_bytes", tenant.memory_quota_bytes},
         {"gradient_bytes_per_s",
          Number(Rate(before_.tenants, after_.tenants, name, &TenantFigures::gradient_bytes))},
         {"reply_bytes_per_s",
          Number(Rate(before_.tenants, after_.tenants, name, &TenantFigures::reply_bytes))}});
  }
  for (const JobEntry* const entry : JobsIn(order)) {
    const auto& [name, job] = *entry;
    const Straggler straggler = StragglerOf(name);
    const Json late = {{"rank", straggler.rank},
                       {"host", straggler.host},
                       {"share_of_rounds", straggler.share},
                       {"late_by_ns", straggler.late_by}};
    jobs.push_back({{"tenant", name.first},
                    {"job", name.second},
                    {"live_workers", job.live},
                    {"world_size", job.world_size},
                    {"doing", StateText(job.info)},
                    {"iteration", job.info.iteration()},
                    {"iteration_ns", job.info.iteration_ns()},
                    {"memory_bytes", job.memory_bytes},
                    {"gradient_bytes_per_s", Number(JobRate(name, &JobFigures::gradient_bytes))},
                    {"reply_bytes_per_s", Number(JobRate(name, &JobFigures::reply_bytes))},
                    {"rounds_per_s", Number(JobRate(name, &JobFigures::rounds))},
                    {"straggler", straggler.known ? late : Json(nullptr)}});
  }
  const Json frame = {{"daemons", daemons}, {"tenants", tenants}, {"jobs", jobs}};
  // Names come from users: replace invalid UTF-8 instead of throwing an exception.
  return frame.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace phub::client::cli
