#include "server/control/admin/draining.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr DurationNs kDrainMax = 365 * 24 * 3600 * kSecond;

}  // namespace

void Draining::TellAll(const v1::SessionEvent& event) {
  for (const auto& job : jobs_.jobs()) {
    for (Member& member : job->members) {
      if (member.sink) member.sink->Send(event);
    }
  }
}

void Draining::SetDraining(DurationNs grace) {
  LogInfo("event=draining jobs={} grace_ns={} stopping={}", jobs_.jobs().size(), grace,
          context_.drain.stopping);
  context_.drain.draining = true;
  context_.drain.deadline = context_.clock.Now() + grace;
  v1::SessionEvent event;
  event.mutable_draining()->set_deadline_ns(grace);
  TellAll(event);
}

void Draining::Drain(DurationNs grace) {
  PHUB_ON_CONTROL();
  context_.drain.stopping = true;
  SetDraining(grace);
}

v1::Fault Draining::MakeDrainFault(const Job& job) const {
  if (context_.drain.stopping) {
    return ending_.MakeFault(job, "daemon_stopped",
                             "phubd is shutting down and the job did not finish in time");
  }
  return ending_.MakeFault(job, "daemon_draining",
                           "an administrator drained phubd and the job did not finish in time");
}

void Draining::DrainServer(const v1::DrainServerRequest& request, Answer<v1::ServerInfo> answer) {
  PHUB_ON_CONTROL();
  if (const DurationNs after = request.deadline_ns(); after < 0 || after > kDrainMax) {
    return answer(absl::InvalidArgumentError(fmt::format(
                      "the drain deadline is {}; it must be between 0 and 365 days from now",
                      after < 0 ? "in the past" : FormatAge(after) + " from now")),
                  {});
  }
  if (context_.drain.stopping) {
    return answer(
        absl::FailedPreconditionError(
            "phubd is shutting down and already draining; the deadline of its shutdown applies"),
        {});
  }
  SetDraining(request.deadline_ns() == 0 ? context_.drain.timeout : request.deadline_ns());
  answer(absl::OkStatus(), admin_.DescribeServer());
}

void Draining::UndrainServer(const v1::UndrainServerRequest& /*request*/,
                             Answer<v1::ServerInfo> answer) {
  PHUB_ON_CONTROL();
  if (context_.drain.stopping) {
    return answer(
        absl::FailedPreconditionError("phubd is shutting down and cannot be undrained; restart it"),
        {});
  }
  if (context_.drain.draining) {
    context_.drain.draining = false;
    LogInfo("event=undrained jobs={}", jobs_.jobs().size());
    v1::SessionEvent event;
    event.mutable_draining()->set_over(true);
    TellAll(event);
  }
  answer(absl::OkStatus(), admin_.DescribeServer());
}

void Draining::EvictJob(const v1::EvictJobRequest& request, Answer<v1::JobInfo> answer) {
  PHUB_ON_CONTROL();
  if (!request.reason().empty() && !IsName(request.reason())) {
    return answer(absl::InvalidArgumentError(fmt::format(
                      "the reason for the eviction must have at most {} bytes of printable UTF-8",
                      kNameBytesMax)),
                  {});
  }
  const absl::StatusOr<Job*> job = jobs_.FindJobToWorkOn(request.tenant(), request.job());
  if (!job.ok()) return answer(job.status(), {});
  context_.counters.Add(ControlCounter::jobs_evicted);
  (*job)->on_closed.push_back([this, evicted = *job, answer = std::move(answer)] {
    descriptions_.Describe(*evicted, [answer](bool /*complete*/, v1::JobInfo info) {
      answer(absl::OkStatus(), std::move(info));
    });
  });
  ending_.Fail(**job, ending_.MakeFault(
                          **job, "evicted",
                          request.reason().empty()
                              ? std::string("evicted by administrator")
                              : fmt::format("evicted by administrator: {}", request.reason())));
}

void Draining::CheckDeadline(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (context_.drain.draining && now >= context_.drain.deadline && job.running()) {
    ending_.Fail(job, MakeDrainFault(job));
  }
}

}  // namespace phub::server
