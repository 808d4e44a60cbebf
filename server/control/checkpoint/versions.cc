// The versions of a job's keys: queries every core loop and answers within a bounded time.
#include "server/control/checkpoint/versions.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/images.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kLargeWaitingMax = 2048;  // of one tenant
constexpr std::size_t kVersionQueriesMax = 16;  // from administrators; in addition to one per rank

// Keys of a page of versions: none if the page begins after the job's last key.
std::size_t CountOf(std::size_t first_key, std::size_t keys_max, const Job& job) {
  return std::min(keys_max, job.keys.size() - std::min(job.keys.size(), first_key));
}

void Merge(const VersionReport::Entry& entry, v1::KeyVersions& key) {
  if (entry.chunk_count == 0) return;
  const bool first = key.chunk_count() == 0;
  key.set_chunk_count(key.chunk_count() + entry.chunk_count);
  if (first || entry.applied_min.value < key.applied_min()) {
    key.set_applied_min(entry.applied_min.value);
    key.set_record(entry.hyper_version.value);
    key.set_previous_record(entry.previous_hyper_version.value);
    *key.mutable_hyper_parameters() = ToProto(entry.hyper_parameters);
    *key.mutable_previous_hyper_parameters() = ToProto(entry.previous_hyper_parameters);
  }
  key.set_applied_max(std::max(key.applied_max(), entry.applied_max.value));
  key.set_reductions_min(first ? entry.reductions_min
                               : std::min(key.reductions_min(), entry.reductions_min));
  key.set_reductions_max(std::max(key.reductions_max(), entry.reductions_max));
}

}  // namespace

Versions::Question Versions::MakeQuestion(Rank asking, std::uint32_t first_key,
                                          std::uint32_t page_size, const TurnBudget& budget) {
  Question question{.asking = asking, .first_key = first_key};
  if (page_size > 0) question.keys_max = std::min<std::size_t>(page_size, budget.keys);
  return question;
}

void Versions::AskForVersionsOf(Job& job, const Question& question, DurationNs timeout,
                                std::function<void(const absl::Status&, VersionQuery&)> done) {
  context_.counters.Add(ControlCounter::version_reports);
  VersionQuery& query = job.checkpoints->version_queries.emplace_back();
  query.answered.assign(context_.cores.size(), false);
  query.deadline = context_.clock.Now() + timeout;
  query.done = std::move(done);
  for (std::size_t core = 0; core < context_.cores.size(); ++core)
    query.reports.push_back(std::make_unique<VersionReport>());
  const auto room = std::make_shared<std::vector<KeyReports>>(context_.cores.size());
  RunLongOn(
      context_, job,
      [room, count = CountOf(question.first_key, question.keys_max, job)] {
        for (KeyReports& each : *room) each.resize(count);
      },
      [this, &job, question, room, first = query.reports[0].get()] {
        SendQuery(job, question, first, *room);
      });
}

// Room for the reports is there. The query may be over already.
void Versions::SendQuery(Job& job, const Question& question, const VersionReport* first,
                         std::vector<KeyReports>& room) {
  std::list<VersionQuery>& queries = job.checkpoints->version_queries;
  const auto query = std::ranges::find_if(
      queries, [&](const VersionQuery& each) { return each.reports[0].get() == first; });
  if (!job.running() || query == queries.end()) return;
  if (!query->done) {
    queries.erase(query);
    return;
  }
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    query->reports[core]->first = KeyIndex{static_cast<std::uint32_t>(question.first_key)};
    query->reports[core]->keys = std::move(room[core]);
    context_.cores[core].Send({.kind = Command::Kind::kReportVersions,
                               .rank = question.asking,
                               .shard = job.shards[core].get(),
                               .versions = query->reports[core].get()});
  }
}

std::vector<std::unique_ptr<VersionReport>> TakeReports(VersionQuery& query) {
  query.answered_count = 0;  // still complete
  return std::exchange(query.reports, {});
}

void Versions::AnswerVersions(Job& job, const Question& question,
                              Answer<v1::GetVersionsResponse> answer) {
  const auto ask = [this, question](Job& asked, const Answer<v1::GetVersionsResponse>& then) {
    if (absl::Status status = CheckQueryRoom(asked); !status.ok()) return then(status, {});
    AskForVersionsOf(asked, question, context_.options.report_timeout,
                     [this, &asked, then](const absl::Status& status, VersionQuery& query) {
                       if (!status.ok()) return then(status, {});
                       DescribeVersions(asked, query, then);
                     });
  };
  if (CountOf(question.first_key, question.keys_max, job) <= context_.options.turn.keys)
    return ask(job, answer);
  // Each core loop reports about all keys, which is tens of MiB for 60,000 keys. Such queries take
  // turns.
  const std::string tenant = job.account.tenant;
  if (large_.WaitingOf(tenant) >= kLargeWaitingMax) {
    return answer(absl::ResourceExhaustedError(fmt::format(
                      "{} queries of versions of tenant {} already wait; try again later",
                      kLargeWaitingMax, tenant)),
                  {});
  }
  const auto finish = [this, tenant, answer](const absl::Status& status,
                                             v1::GetVersionsResponse response) {
    answer(status, std::move(response));
    large_.Leave(tenant);
  };
  large_.Enter(tenant, [this, ask, finish, incarnation = job.account.incarnation] {
    Job* const found = jobs_.FindIncarnation(incarnation);
    if (found != nullptr && found->running()) return ask(*found, finish);
    finish(absl::AbortedError("the job has ended"), {});
  });
}

void Versions::AskForVersions(Job& job, DurationNs timeout,
                              std::function<void(const absl::Status&, VersionQuery&)> done) {
  AskForVersionsOf(job, {}, timeout, std::move(done));
}

void Versions::HandleVersionsReported(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  const auto query = std::find_if(
      job.checkpoints->version_queries.begin(), job.checkpoints->version_queries.end(),
      [&](const VersionQuery& each) { return each.reports[core.value].get() == event.versions; });
  PHUB_CHECK(query != job.checkpoints->version_queries.end() && !query->answered[core.value],
             "core={}", core.value);
  query->answered[core.value] = true;
  ++query->answered_count;
}

void Versions::CheckVersionQueries(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  for (auto query = job.checkpoints->version_queries.begin();
       query != job.checkpoints->version_queries.end();) {
    if (query->done && query->complete()) {
      std::exchange(query->done, nullptr)(absl::OkStatus(), *query);
    } else if (query->done && now >= query->deadline) {
      const auto silent = std::find(query->answered.begin(), query->answered.end(), false);
      std::exchange(query->done, nullptr)(
          absl::DeadlineExceededError(
              fmt::format("core loop {} did not report the versions of job {} within {}",
                          silent - query->answered.begin(), job.name(),
                          FormatAge(context_.options.report_timeout))),
          *query);
    }
    query = query->complete() ? job.checkpoints->version_queries.erase(query) : std::next(query);
  }
}

// Describes a complete query without the lock, if there are many keys.
void Versions::DescribeVersions(const Job& job, VersionQuery& query,
                                const Answer<v1::GetVersionsResponse>& answer) {
  struct Description {
    std::vector<std::unique_ptr<VersionReport>> reports;
    std::vector<std::uint64_t> first_iterations;  // [key]; they change under the lock
    v1::GetVersionsResponse response;
  };
  const auto description = std::make_shared<Description>();
  // Keys that were added after the query began have no reports; the next query covers them.
  const std::size_t first_key = query.reports[0]->first.value;
  // Those that were removed meanwhile do not count.
  const std::size_t key_count = CountOf(first_key, query.reports[0]->keys.size(), job);
  const std::vector<std::uint64_t>& first_iterations = job.keys.first_iterations();
  for (std::size_t i = 0; i < key_count; ++i)
    description->first_iterations.push_back(first_iterations[first_key + i]);
  description->response.set_incarnation(job.account.incarnation.value);
  if (first_key + key_count < job.keys.size() && key_count > 0)
    description->response.set_next_key(static_cast<std::uint32_t>(first_key + key_count));
  if (job.rack_run != nullptr) {
    for (std::uint32_t rack = 0; rack < context_.options.racks_with_ranks(); ++rack)
      description->response.add_racks(context_.options.racks[rack]);
  }
  description->reports = TakeReports(query);  // the core loops have answered
  context_.turns.RunLong(
      key_count, job.account.tenant,
      [description, first_key] {
        for (std::size_t i = 0; i < description->first_iterations.size(); ++i) {
          v1::KeyVersions& key = *description->response.add_keys();
          key.set_key_index(static_cast<std::uint32_t>(first_key + i));
          key.set_first_iteration(description->first_iterations[i]);
          for (const auto& report : description->reports) Merge(report->keys[i], key);
        }
      },
      [description, answer] { answer(absl::OkStatus(), std::move(description->response)); });
}

absl::Status Versions::CheckQueryRoom(const Job& job) const {
  PHUB_ON_CONTROL();
  if (job.checkpoints->version_queries.size() < kVersionQueriesMax + job.members.size()) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      fmt::format("{} clients are already querying the versions of job {}; try again later",
                  job.checkpoints->version_queries.size(), job.name()));
}

void Versions::GetVersions(const v1::GetVersionsRequest& request,
                           Answer<v1::GetVersionsResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  AnswerVersions(
      *seat->job,
      MakeQuestion(seat->rank, request.first_key(), request.page_size(), context_.options.turn),
      std::move(answer));
}

void Versions::GetJobVersions(const v1::GetJobVersionsRequest& request,
                              Answer<v1::GetVersionsResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Job*> job = jobs_.FindJobToWorkOn(request.tenant(), request.job());
  absl::Status status = job.status();
  if (status.ok()) status = CheckSpansRacks(**job, request.has_rack());
  if (!status.ok()) return answer(status, {});
  AnswerVersions(
      **job,
      MakeQuestion(Rank::Max(), request.first_key(), request.page_size(), context_.options.turn),
      std::move(answer));
}

void Versions::OnOver(Job& job, const absl::Status& why) {
  PHUB_ON_CONTROL();
  for (VersionQuery& query : job.checkpoints->version_queries) {
    if (query.done) std::exchange(query.done, nullptr)(why, query);
  }
}

}  // namespace phub::server
