// Draining: no new jobs, and what runs ends by itself or, after a deadline, by name. Evicting: one
// job ends because the administrator says so.
#include <algorithm>

#include "common/base/log.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr DurationNs kDrainMax = 365 * 24 * 3600 * kSecond;

}  // namespace

void Control::State::TellAll(const v1::SessionEvent& event) {
  for (const auto& job : jobs) {
    for (Member& member : job->members) {
      if (member.sink) member.sink->Send(event);
    }
  }
}

void Control::State::SetDraining(DurationNs grace) {
  LogInfo("event=draining jobs={} grace_ns={} stopping={}", jobs.size(), grace, stopping);
  draining = true;
  drain_deadline = clock.Now() + grace;
  v1::SessionEvent event;
  event.mutable_draining()->set_deadline_ns(grace);
  TellAll(event);
}

void Control::State::Drain(DurationNs grace) {
  stopping = true;
  SetDraining(grace);
}

v1::Fault Control::State::MakeDrainFault(const Job& job) const {
  if (stopping) {
    return MakeFault(job, "daemon_stopped",
                     "phubd was told to stop and the job was not done in time");
  }
  return MakeFault(job, "daemon_draining",
                   "phubd drains for its administrator and the job was not done in time");
}

void Control::State::DrainServer(const v1::DrainServerRequest& request,
                                 Answer<v1::ServerInfo> answer) {
  if (request.deadline_ns() < 0 || request.deadline_ns() > kDrainMax) {
    return answer(
        absl::InvalidArgumentError(fmt::format(
            "the deadline is {} ns, must be from now to a year from now", request.deadline_ns())),
        {});
  }
  if (stopping) {
    return answer(absl::FailedPreconditionError(
                      "phubd was told to stop and drains already; its deadline stands"),
                  {});
  }
  SetDraining(request.deadline_ns() == 0 ? drain_timeout : request.deadline_ns());
  answer(absl::OkStatus(), DescribeServer());
}

void Control::State::UndrainServer(Answer<v1::ServerInfo> answer) {
  if (stopping) {
    return answer(absl::FailedPreconditionError(
                      "phubd was told to stop, and there is no way back; start it anew"),
                  {});
  }
  if (draining) {
    draining = false;
    LogInfo("event=undrained jobs={}", jobs.size());
    v1::SessionEvent event;
    event.mutable_draining()->set_over(true);
    TellAll(event);
  }
  answer(absl::OkStatus(), DescribeServer());
}

absl::StatusOr<Job*> Control::State::FindJobToWorkOn(const std::string& tenant,
                                                     const std::string& name) {
  const absl::StatusOr<const Job*> found = FindJob(tenant, name);
  if (!found.ok()) return found.status();
  Job* const job = FindIncarnation((*found)->account.incarnation);
  if (job != nullptr && job->running()) return job;
  const std::string why =
      (*found)->state == Job::State::kFailed ? (*found)->fault.message() : "it has ended";
  return absl::FailedPreconditionError(fmt::format("job {} does not run: {}", name, why));
}

void Control::State::EvictJob(const v1::EvictJobRequest& request, Answer<v1::JobInfo> answer) {
  if (!request.reason().empty() && !IsName(request.reason())) {
    return answer(
        absl::InvalidArgumentError(fmt::format(
            "the reason must have at most {} bytes and no control characters", kNameBytesMax)),
        {});
  }
  const absl::StatusOr<Job*> job = FindJobToWorkOn(request.tenant(), request.job());
  if (!job.ok()) return answer(job.status(), {});
  counters.Add(ControlCounter::jobs_evicted);
  (*job)->evictions.push_back(std::move(answer));
  Fail(**job, MakeFault(**job, "evicted",
                        request.reason().empty()
                            ? std::string("evicted by administrator")
                            : fmt::format("evicted by administrator: {}", request.reason())));
}

}  // namespace phub::server
