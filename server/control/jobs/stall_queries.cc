#include "server/control/jobs/stall_queries.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/on_control.h"

namespace phub::server {
namespace {

constexpr std::size_t kReportEntriesMax = 256;  // per core; further entries are counted as dropped

std::unique_ptr<StallReport> MakeReport(std::size_t world_size) {
  auto report = std::make_unique<StallReport>();
  report->entries.resize(kReportEntriesMax);
  for (StallReport::Entry& entry : report->entries) entry.missing.resize((world_size + 63) / 64);
  return report;
}

}  // namespace

StallQuery& StallQueries::AskForStalls(Job& job, DurationNs timeout,
                                       std::function<void(StallQuery&)> done,
                                       const std::optional<StallReport::Round>& round,
                                       const std::optional<StallReport::Record>& record) {
  PHUB_ON_CONTROL();
  context_.counters.Add(ControlCounter::stall_reports);
  StallQuery& query = job.queries.emplace_back();
  query.answered.assign(context_.cores.size(), false);
  query.deadline = context_.clock.Now() + timeout;
  query.done = std::move(done);
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    query.reports.push_back(MakeReport(job.members.size()));
    query.reports.back()->asked = round;
    query.reports.back()->record = record;
    context_.cores[core].Send({.kind = Command::Kind::kReportStalls,
                               .shard = job.shards[core].get(),
                               .report = query.reports.back().get()});
  }
  return query;
}

void StallQueries::HandleStallsReported(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  const auto query = std::find_if(
      job.queries.begin(), job.queries.end(),
      [&](const StallQuery& each) { return each.reports[core.value].get() == event.report; });
  PHUB_CHECK(query != job.queries.end() && !query->answered[core.value], "core={}", core.value);
  query->answered[core.value] = true;
  ++query->answered_count;
}

void StallQueries::CheckQueries(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  for (auto query = job.queries.begin(); query != job.queries.end();) {
    if (query->done && (query->complete() || now >= query->deadline)) {
      std::exchange(query->done, nullptr)(*query);
    }
    query = query->complete() ? job.queries.erase(query) : std::next(query);
  }
}

}  // namespace phub::server
