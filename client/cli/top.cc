// phubctl top: the rack, its tenants and its jobs, live.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "client/cli/cli.h"
#include "client/cli/job_state.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "client/cli/top_sample.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

using Align = Table::Align;
using Json = nlohmann::ordered_json;

struct TopQuery {
  std::string interval_text = "2s";
  bool once = false;
};

std::string GigabytesPerSecond(double bytes_per_second) {
  if (bytes_per_second < 0) return "-";
  return fmt::format("{:.3f}", bytes_per_second / 1e9);
}

// Two samples and the changes between them.
class TopFrame {
 public:
  TopFrame(const TopSample& before, const TopSample& after)
      : before_(before), after_(after), elapsed_(after.taken_at - before.taken_at) {}

  std::string Text() const {
    return fmt::format("{}\n{}\n{}", DaemonsTable(), TenantsTable(), JobsTable());
  }
  std::string JsonText() const;

 private:
  template <typename Map, typename Name, typename Member>
  double Rate(const Map& before, const Map& after, const Name& name, Member member) const {
    const auto then = before.find(name);
    if (then == before.end()) return -1;
    return PerSecond(then->second.*member, after.at(name).*member, elapsed_);
  }
  template <typename Member>
  double JobRate(const JobName& name, Member member) const {
    return Rate(before_.jobs, after_.jobs, name, member);
  }
  // [core]: share of time that the core loop had work; negative: not known.
  std::vector<double> BusyShares(const std::string& endpoint) const;
  Straggler StragglerOf(const JobName& name) const {
    const auto then = before_.jobs.find(name);
    return then == before_.jobs.end() ? Straggler{}
                                      : FindStraggler(then->second, after_.jobs.at(name));
  }
  std::string DaemonsTable() const;
  std::string TenantsTable() const;
  std::string JobsTable() const;

  const TopSample& before_;
  const TopSample& after_;
  const DurationNs elapsed_;
};

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

std::string TopFrame::DaemonsTable() const {
  Table table({{"DAEMON"},
               {"STATE"},
               {"MEMORY"},
               {"IN GB/s", Align::kRight},
               {"OUT GB/s", Align::kRight},
               {"CORES BUSY"}});
  for (const auto& [endpoint, daemon] : after_.daemons) {
    if (!daemon.status.ok()) {
      table.Add({endpoint, "does not answer", "-", "-", "-", "-"});
      continue;
    }
    std::string cores;
    for (const double share : BusyShares(endpoint)) {
      cores += share < 0 ? " -" : fmt::format(" {:.0f}%", share * 100);
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
               cores.empty() ? "-" : cores.substr(1)});
  }
  return table.Text();
}

std::string TopFrame::TenantsTable() const {
  Table table({{"TENANT"},
               {"JOBS", Align::kRight},
               {"WORKERS", Align::kRight},
               {"MEMORY"},
               {"IN GB/s", Align::kRight},
               {"OUT GB/s", Align::kRight}});
  for (const auto& [name, tenant] : after_.tenants) {
    table.Add({name, fmt::format("{}", tenant.jobs), fmt::format("{}", tenant.live_workers),
               fmt::format("{} of {}", HumanBytes(tenant.memory_bytes),
                           HumanBytes(tenant.memory_quota_bytes)),
               GigabytesPerSecond(
                   Rate(before_.tenants, after_.tenants, name, &TenantFigures::gradient_bytes)),
               GigabytesPerSecond(
                   Rate(before_.tenants, after_.tenants, name, &TenantFigures::reply_bytes))});
  }
  return table.Text();
}

std::string TopFrame::JobsTable() const {
  Table table({{"TENANT"},
               {"JOB"},
               {"STATE"},
               {"WORKERS", Align::kRight},
               {"ITERATION", Align::kRight},
               {"EACH", Align::kRight},
               {"MEMORY", Align::kRight},
               {"IN GB/s", Align::kRight},
               {"OUT GB/s", Align::kRight},
               {"ROUNDS/s", Align::kRight},
               {"STRAGGLER"}});
  for (const auto& [name, job] : after_.jobs) {
    const double rounds = JobRate(name, &JobFigures::rounds);
    const Straggler straggler = StragglerOf(name);
    table.Add({name.first, name.second, StateText(job.info),
               fmt::format("{}/{}", job.live, job.world_size), IterationText(job.info),
               IterationTimeText(job.info), HumanBytes(job.memory_bytes),
               GigabytesPerSecond(JobRate(name, &JobFigures::gradient_bytes)),
               GigabytesPerSecond(JobRate(name, &JobFigures::reply_bytes)),
               rounds < 0 ? "-" : fmt::format("{:.0f}", rounds),
               !straggler.known ? "-"
                                : fmt::format("rank {} ({}): last in {:.0f}% of rounds, by {}",
                                              straggler.rank, straggler.host, straggler.share * 100,
                                              HumanDuration(straggler.late_by))});
  }
  return table.Text();
}

// Unknown rates are null.
Json Number(double value) { return value < 0 ? Json(nullptr) : Json(value); }

std::string TopFrame::JsonText() const {
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
  for (const auto& [name, job] : after_.jobs) {
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

class TopView {
 public:
  TopView(const Options& options, DurationNs interval) : options_(options), interval_(interval) {}

  Shown Next() {
    if (sample_.taken_at == 0) {  // rates need two samples
      if (const grpc::Status status = TakeTopSample(options_, clock_, sample_); !status.ok())
        return {Report(status, options_), ""};
      std::this_thread::sleep_for(std::chrono::nanoseconds(interval_));
    }
    TopSample before = std::move(sample_);
    if (const grpc::Status status = TakeTopSample(options_, clock_, sample_); !status.ok())
      return {Report(status, options_), ""};
    const TopFrame frame(before, sample_);
    return {kOk, options_.output == Output::kJson ? frame.JsonText() : frame.Text()};
  }

 private:
  const Options& options_;
  const DurationNs interval_;
  SystemClock clock_;
  TopSample sample_;
};

}  // namespace

void AddTop(Subcommand parent, const Options& options, Command& command) {
  const Subcommand top =
      parent.AddSubcommand("top", "Show the load of a rack, its tenants and jobs, live");
  const auto query = std::make_shared<TopQuery>();
  top.AddOption("--interval", query->interval_text,
                "Time between updates; rates are averaged over it")
      .TypeName("DURATION")
      .ShowDefault()
      .Check([](const std::string& text) {
        const auto interval = ParseDuration(text);
        if (interval && *interval >= 100 * kMillisecond) return std::string();
        return fmt::format("\"{}\" is not an interval of at least 100ms, such as \"2s\"", text);
      });
  top.AddFlag("--once", query->once, "Show one interval and exit");
  top.SetFooter(
      "IN counts gradients, OUT counts replies with parameters. The straggler of a job is the "
      "rank\n"
      "that its rounds waited for longest. STRAGGLER shows the share of rounds in which it was\n"
      "last, and its mean delay in them. CORES BUSY shows for each core loop the share of time in\n"
      "which it had work.\n"
      "\nExamples:\n"
      "  phubctl top\n"
      "  phubctl top --once --interval 10s -o json | jq '.jobs[] | {job, straggler}'");
  top.OnNamed([&, query] {
    command = [&, query] {
      const DurationNs interval = ParseDuration(query->interval_text).value_or(kSecond);
      TopView view(options, interval);
      return Show(query->once ? 0 : interval, [&view] { return view.Next(); });
    };
  });
}

}  // namespace phub::client::cli
