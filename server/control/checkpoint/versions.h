// Where the chunks of a job's keys are: asked of every core loop, answered in bounded time. Owned
// by Control; under control's lock.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/context.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/sessions.h"

namespace phub::server {

class Versions final : public JobObserver {
 public:
  Versions(Context& context, JobTable& jobs, Sessions& sessions)
      : context_(context), jobs_(jobs), sessions_(sessions) {}

  // For a rank: the versions that it reads here.
  void GetVersions(const v1::GetVersionsRequest& request, Answer<v1::GetVersionsResponse> answer);
  // For administrators: the versions of the chunks that are at home here.
  void GetJobVersions(const v1::GetJobVersionsRequest& request,
                      Answer<v1::GetVersionsResponse> answer);

  // RESOURCE_EXHAUSTED: too many ask already.
  absl::Status CheckQueryRoom(const Job& job) const;
  // Of the chunks that are at home here. done: called once; OK if the query is complete or out of
  // time, otherwise the job has ended.
  void AskForVersions(Job& job, DurationNs timeout,
                      std::function<void(const absl::Status&, VersionQuery&)> done);
  v1::GetVersionsResponse DescribeVersions(const Job& job, const VersionQuery& query) const;

  void HandleVersionsReported(Job& job, CoreIndex core, const Event& event);
  void CheckVersionQueries(Job& job, TimeNs now);

  void OnOver(Job& job, const absl::Status& why) override;

 private:
  // asking: Max() for the chunks that are at home here; a rank for all that it reads here.
  void AskForVersionsOf(Job& job, Rank asking, DurationNs timeout,
                        std::function<void(const absl::Status&, VersionQuery&)> done);
  void AnswerVersionsTo(Job& job, Rank asking, Answer<v1::GetVersionsResponse> answer);
  void AnswerVersions(Job& job, Answer<v1::GetVersionsResponse> answer);

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
};

}  // namespace phub::server
