// What `phubctl top` shows: two samples and the changes between them, as tables that fit a terminal
// or as JSON. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/top_sample.h"
#include "common/base/clock.h"

namespace phub::client::cli {

// The order of the jobs. All but kName put the largest first; jobs that are alike are in the order
// of their names.
enum class TopOrder : std::uint8_t { kName, kMemory, kTraffic, kTime, kState };
inline constexpr std::string_view kTopOrderNames[] = {"name", "memory", "traffic", "time", "state"};
TopOrder NextOrder(TopOrder order);

class TopFrame {
 public:
  // The samples must outlive it.
  TopFrame(const TopSample& before, const TopSample& after)
      : before_(before), after_(after), elapsed_(after.taken_at - before.taken_at) {}

  // columns: the width of the terminal, 0: any width. highlight: show stalled jobs in reverse.
  std::string Text(std::size_t columns, TopOrder order, bool highlight) const;
  std::string JsonText(TopOrder order) const;

 private:
  using JobEntry = std::pair<const TopJobName, JobFigures>;

  template <typename Map, typename Name, typename Member>
  double Rate(const Map& before, const Map& after, const Name& name, Member member) const {
    const auto then = before.find(name);
    if (then == before.end()) return -1;
    return PerSecond(then->second.*member, after.at(name).*member, elapsed_);
  }
  template <typename Member>
  double JobRate(const TopJobName& name, Member member) const {
    return Rate(before_.jobs, after_.jobs, name, member);
  }
  // [core]: share of time that the core loop had work; negative: not known.
  std::vector<double> BusyShares(const std::string& endpoint) const;
  Straggler StragglerOf(const TopJobName& name) const;
  std::vector<const JobEntry*> JobsIn(TopOrder order) const;
  double Weight(const JobEntry& job, TopOrder order) const;
  std::string DaemonsTable(std::size_t columns) const;
  std::string TenantsTable(std::size_t columns) const;
  std::string JobsTable(std::size_t columns, TopOrder order, bool highlight) const;

  const TopSample& before_;
  const TopSample& after_;
  const DurationNs elapsed_;
};

}  // namespace phub::client::cli
