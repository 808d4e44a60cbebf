// Where the chunks of a job's keys are: asked of every core loop, answered in bounded time.
#include <algorithm>

#include "common/base/check.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kVersionQueriesMax = 16;  // administrators; beside them one per rank

void Merge(const VersionReport::Entry& entry, v1::KeyVersions& key) {
  if (entry.chunk_count == 0) return;
  const bool first = key.chunk_count() == 0;
  key.set_chunk_count(key.chunk_count() + entry.chunk_count);
  if (first || entry.applied_min.value < key.applied_min()) {
    key.set_applied_min(entry.applied_min.value);
    key.set_record(entry.record.value);
    key.set_previous_record(entry.previous_record.value);
    *key.mutable_hyper_parameters() = ToProto(entry.hyper_parameters);
    *key.mutable_previous_hyper_parameters() = ToProto(entry.previous_hyper_parameters);
  }
  key.set_applied_max(std::max(key.applied_max(), entry.applied_max.value));
  key.set_reductions_min(first ? entry.reductions_min
                               : std::min(key.reductions_min(), entry.reductions_min));
  key.set_reductions_max(std::max(key.reductions_max(), entry.reductions_max));
}

// asking: Max() for the chunks that are at home here; a rank for all that it reads here.
void Ask(Control::State& state, Job& job, Rank asking, DurationNs timeout,
         std::function<void(const absl::Status&, VersionQuery&)> done) {
  state.counters.Add(ControlCounter::version_reports);
  VersionQuery& query = job.version_queries.emplace_back();
  query.answered.assign(state.links.size(), false);
  query.deadline = state.clock.Now() + timeout;
  query.done = std::move(done);
  for (std::size_t core = 0; core < state.links.size(); ++core) {
    query.reports.push_back(std::make_unique<VersionReport>());
    query.reports.back()->keys.resize(job.keys.size());
    state.links[core].Send({.kind = Command::Kind::kReportVersions,
                            .rank = asking,
                            .shard = job.shards[core].get(),
                            .versions = query.reports.back().get()});
  }
}

void AnswerTo(Control::State& state, Job& job, Rank asking,
              Answer<v1::GetVersionsResponse> answer) {
  if (absl::Status status = state.CheckQueryRoom(job); !status.ok()) return answer(status, {});
  Ask(state, job, asking, state.options.report_timeout,
      [&state, &job, answer](const absl::Status& status, VersionQuery& query) {
        if (!status.ok()) return answer(status, {});
        answer(absl::OkStatus(), state.DescribeVersions(job, query));
      });
}

}  // namespace

void Control::State::AskForVersions(Job& job, DurationNs timeout,
                                    std::function<void(const absl::Status&, VersionQuery&)> done) {
  Ask(*this, job, Rank::Max(), timeout, std::move(done));
}

void Control::State::HandleVersionsReported(Job& job, CoreIndex core, const Event& event) {
  const auto query = std::find_if(
      job.version_queries.begin(), job.version_queries.end(),
      [&](const VersionQuery& each) { return each.reports[core.value].get() == event.versions; });
  PHUB_CHECK(query != job.version_queries.end() && !query->answered[core.value], "core={}",
             core.value);
  query->answered[core.value] = true;
  ++query->answered_count;
}

void Control::State::CheckVersionQueries(Job& job, TimeNs now) {
  for (auto query = job.version_queries.begin(); query != job.version_queries.end();) {
    if (query->done && query->complete()) {
      std::exchange(query->done, nullptr)(absl::OkStatus(), *query);
    } else if (query->done && now >= query->deadline) {
      const auto silent = std::find(query->answered.begin(), query->answered.end(), false);
      std::exchange(query->done, nullptr)(
          absl::DeadlineExceededError(fmt::format(
              "core loop {} did not report the versions of job {} within {}",
              silent - query->answered.begin(), job.name(), FormatAge(options.report_timeout))),
          *query);
    }
    query = query->complete() ? job.version_queries.erase(query) : std::next(query);
  }
}

v1::GetVersionsResponse Control::State::DescribeVersions(const Job& job,
                                                         const VersionQuery& query) const {
  v1::GetVersionsResponse response;
  // Keys that were added after the question have no reports; they are asked for the next time.
  for (std::size_t i = 0; i < query.reports[0]->keys.size(); ++i) {
    v1::KeyVersions& key = *response.add_keys();
    key.set_key_index(static_cast<std::uint32_t>(i));
    key.set_first_iteration(job.keys[i].first_iteration());
    for (const auto& report : query.reports) Merge(report->keys[i], key);
  }
  if (job.rack_run == nullptr) return response;
  for (std::uint32_t rack = 0; rack < options.racks_with_ranks(); ++rack) {
    response.add_racks(options.racks[rack]);
  }
  return response;
}

absl::Status Control::State::CheckQueryRoom(const Job& job) const {
  if (job.version_queries.size() < kVersionQueriesMax + job.members.size()) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} others are asking for the versions of job {}; try again",
                  job.version_queries.size(), job.name()));
}

void Control::State::AnswerVersions(Job& job, Answer<v1::GetVersionsResponse> answer) {
  AnswerTo(*this, job, Rank::Max(), std::move(answer));
}

void Control::State::GetVersions(const v1::GetVersionsRequest& request,
                                 Answer<v1::GetVersionsResponse> answer) {
  const absl::StatusOr<Seating> seat = FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  AnswerTo(*this, *seat->job, seat->rank, std::move(answer));
}

void Control::State::GetJobVersions(const v1::GetJobVersionsRequest& request,
                                    Answer<v1::GetVersionsResponse> answer) {
  const absl::StatusOr<Job*> job = FindJobToWorkOn(request.tenant(), request.job());
  absl::Status status = job.status();
  if (status.ok()) status = CheckSpansRacks(**job, request.has_rack());
  if (!status.ok()) return answer(status, {});
  AnswerVersions(**job, std::move(answer));
}

}  // namespace phub::server
