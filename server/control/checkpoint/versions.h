// The versions of a job's keys: queries every core loop and answers within a bounded time. Owned by
// Control; under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/context.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_turns.h"

namespace phub::server {

// The reports of a complete query, which stays complete.
std::vector<std::unique_ptr<VersionReport>> TakeReports(VersionQuery& query);

class Versions final : public JobObserver {
 public:
  Versions(Context& context, JobTable& jobs, Sessions& sessions)
      : context_(context), jobs_(jobs), sessions_(sessions) {}

  // For a rank: the versions of all chunks that it reads from this daemon. Both calls answer in
  // pages of at most TurnBudget::keys keys if the caller names a page's size.
  void GetVersions(const v1::GetVersionsRequest& request, Answer<v1::GetVersionsResponse> answer);
  // For administrators: the versions of the chunks whose home is this daemon.
  void GetJobVersions(const v1::GetJobVersionsRequest& request,
                      Answer<v1::GetVersionsResponse> answer);

  // RESOURCE_EXHAUSTED: too many queries are in progress.
  absl::Status CheckQueryRoom(const Job& job) const;
  // Queries the versions of the chunks whose home is this daemon. done: called once; OK if the
  // query is complete or timed out, otherwise the job has ended.
  void AskForVersions(Job& job, DurationNs timeout,
                      std::function<void(const absl::Status&, VersionQuery&)> done);

  void HandleVersionsReported(Job& job, CoreIndex core, const Event& event);
  void CheckVersionQueries(Job& job, TimeNs now);

  void OnOver(Job& job, const absl::Status& why) override;

 private:
  struct Question {
    // Rank::Max() selects the chunks whose home is this daemon; a rank selects all chunks that it
    // reads here.
    Rank asking = Rank::Max();
    std::size_t first_key = 0;
    std::size_t keys_max = SIZE_MAX;
  };
  static Question MakeQuestion(Rank asking, std::uint32_t first_key, std::uint32_t page_size,
                               const TurnBudget& budget);
  void AskForVersionsOf(Job& job, const Question& question, DurationNs timeout,
                        std::function<void(const absl::Status&, VersionQuery&)> done);
  using KeyReports = std::vector<VersionReport::Entry>;  // [key]
  // `first`: the query's report of core loop 0.
  void SendQuery(Job& job, const Question& question, const VersionReport* first,
                 std::vector<KeyReports>& room);
  void AnswerVersions(Job& job, const Question& question, Answer<v1::GetVersionsResponse> answer);
  void DescribeVersions(const Job& job, VersionQuery& query,
                        const Answer<v1::GetVersionsResponse>& answer);

  static constexpr std::size_t kLargeAtOnce = 2;

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  TenantTurns large_{kLargeAtOnce};  // queries of jobs with many keys
};

}  // namespace phub::server
