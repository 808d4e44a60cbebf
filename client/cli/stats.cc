// phubctl stats: the daemon's counters and, with --watch, their rates.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <tuple>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"

namespace phub::client::cli {
namespace {

struct StatsQuery {
  std::string watch_text;
  bool all = false;
};

using CounterName = std::tuple<std::string, std::string, std::string, std::int32_t>;

class StatsView {
 public:
  StatsView(const Options& options, const StatsQuery& query) : options_(options), query_(query) {}

  Shown Next() {
    v1::GetStatsResponse response;
    const grpc::Status status = CallPages(options_, &v1::Admin::Stub::GetStats,
                                          v1::GetStatsRequest(), kEntriesPerPage, response);
    if (!status.ok()) return {Report(status, options_), ""};
    if (options_.output == Output::kJson) return {kOk, ToJson(response, IsWatching())};
    return {kOk, CountersTable(response)};
  }

 private:
  bool IsWatching() const { return !query_.watch_text.empty(); }

  std::string CountersTable(const v1::GetStatsResponse& response) {
    std::vector<Table::Column> columns = {
        {"COUNTER"}, {"TENANT"}, {"JOB"}, {"CORE"}, {"VALUE", Table::Align::kRight}};
    if (IsWatching()) columns.push_back({"PER SECOND", Table::Align::kRight});
    Table table(std::move(columns));
    const TimeNs now = clock_.Now();
    for (const v1::Counter& counter : response.counters()) {
      const CounterName name{counter.name(), counter.tenant(), counter.job(), counter.core()};
      const auto before = values_.find(name);
      const std::string rate =
          before == values_.end() ? "-" : Rate(before->second, counter.value(), now - sampled_at_);
      values_[name] = counter.value();
      if (counter.value() == 0 && !query_.all) continue;
      std::vector<std::string> cells = {
          counter.name(), counter.tenant().empty() ? "-" : counter.tenant(),
          counter.job().empty() ? "-" : counter.job(),
          counter.core() < 0 ? "-" : fmt::format("{}", counter.core()),
          fmt::format("{}", counter.value())};
      if (IsWatching()) cells.push_back(rate);
      table.Add(std::move(cells));
    }
    sampled_at_ = now;
    return table.Text();
  }

  static std::string Rate(std::uint64_t before, std::uint64_t after, DurationNs elapsed) {
    if (elapsed <= 0 || after < before) return "-";  // the daemon was restarted
    return fmt::format("{:.0f}",
                       static_cast<double>(after - before) * 1e9 / static_cast<double>(elapsed));
  }

  const Options& options_;
  const StatsQuery& query_;
  SystemClock clock_;
  std::map<CounterName, std::uint64_t> values_;
  TimeNs sampled_at_ = 0;
};

}  // namespace

void AddStats(Subcommand parent, const Options& options, Command& command) {
  const Subcommand stats =
      parent.AddSubcommand("stats", "Show counters of the daemon, its jobs and core loops");
  const auto query = std::make_shared<StatsQuery>();
  AddWatch(stats, query->watch_text);
  stats.AddFlag("--all", query->all, "Include counters that are 0 in tables");
  stats.SetFooter(
      "Examples:\n"
      "  phubctl stats --watch\n"
      "  phubctl stats -o json | jq '.counters[] | select(.name | test(\"refused\"))'");
  stats.OnNamed([&, query] {
    command = [&, query] {
      StatsView view(options, *query);
      return Show(WatchInterval(query->watch_text), [&view] { return view.Next(); });
    };
  });
}

}  // namespace phub::client::cli
