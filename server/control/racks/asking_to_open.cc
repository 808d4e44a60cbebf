// Ranks ask rack 0 to open their job, and wait until it has.
#include <algorithm>
#include <utility>

#include "common/base/printable.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/ranks/joins.h"

namespace phub::server {

v1::PeerJob JobOf(const v1::JoinRequest& request, const JobSettings& settings) {
  v1::PeerJob job;
  job.set_tenant(TenantOf(request));
  job.set_job(request.job());
  *job.mutable_options() = request.options();
  for (const std::uint32_t count : settings.daemon_cores) job.add_daemon_cores(count);
  job.mutable_options()->set_chunk_bytes(settings.chunk_bytes);
  job.mutable_options()->set_staging_bytes_per_lane(settings.staging_bytes_per_lane);
  // Otherwise it would depend on the first rank which rack's default applies.
  if (settings.on_loss == LossPolicy::kWait) {
    job.mutable_options()->set_wait_timeout_ns(settings.wait_timeout);
  }
  job.set_created_by(request.rank());
  return job;
}

// A rank joins and the job does not exist here. This happens at racks other than 0. At rack 0 it
// happens if an older run still waits for other racks' ranks to leave, or if the topology is not
// measured yet; rack 0 then defers its own request, and the rank waits, too.
void RackOpening::AskToOpen(const v1::JoinRequest& request, std::string_view peer_address,
                            const JobSettings& settings, Answer<v1::JoinResponse> answer_given) {
  PHUB_ON_CONTROL();
  HeldJoin held{
      .request = request,
      .peer_address = std::string(peer_address),
      .answer = std::move(answer_given),
      .deadline = context_.clock.Now() + kHeldTimeouts * context_.options.liveness_timeout,
      .asked_instance = {}};
  held.request.set_tenant(TenantOf(held.request));
  held.request.clear_settings();  // only for a refusal
  if (survey_.AwaitsSurvey()) {   // do not let a rank wait for a refusal
    if (absl::Status status = joins_.CheckRoom(held.request); !status.ok()) {
      return held.answer(status, {});
    }
  }
  v1::PeerMessage message;
  *message.mutable_request() = JobOf(held.request, settings);
  const Incarnation incarnation{held.request.incarnation()};
  message.set_incarnation(incarnation.value);
  const v1::PeerJob& job = message.request();
  const Answer<v1::JoinResponse> answer = held.answer;
  if (job.ByteSizeLong() > kPeerMessageBytesMax) {
    return answer(
        context_.Refuse(
            ControlCounter::joins_refused_plan,
            absl::InvalidArgumentError(fmt::format(
                "job {}: its description has {} bytes, and at most {} can be sent to other racks",
                job.job(), job.ByteSizeLong(), kPeerMessageBytesMax))),
        {});
  }
  if (!held_.Add(std::move(held))) {
    return answer(
        context_.Refuse(ControlCounter::joins_refused_capacity,
                        absl::ResourceExhaustedError(fmt::format(
                            "job {} was not opened: already {} ranks wait for {} to open their "
                            "jobs; try again later",
                            job.job(), held_.size(), context_.options.DescribeRack(RackIndex{0})))),
        {});
  }
  // One request is enough for all waiting ranks, unless rack 0 has restarted since.
  if (held_.NoteAsked(job.tenant(), job.job(), incarnation.value,
                      known_.InstanceOf(RackIndex{0}))) {
    return;
  }
  if (context_.options.rack_index == 0) return messages_.Defer(RackIndex{0}, message);
  messages_.SendToRack(RackIndex{0}, incarnation, std::move(message));
}

void RackOpening::RefuseHeld(const v1::PeerRefused& refused, Incarnation incarnation) {
  PHUB_ON_CONTROL();
  absl::Status status(static_cast<absl::StatusCode>(refused.code()), refused.message());
  if (status.ok())
    status = absl::InternalError(refused.message());  // a refusal must not look like a success
  for (HeldJoin& held : TakeHeld(refused.tenant(), refused.job(), incarnation)) {
    held.answer(status, {});
  }
}

// The job now exists here: its waiting ranks join.
void RackOpening::JoinHeld(const v1::PeerJob& job, Incarnation incarnation) {
  for (HeldJoin& held : TakeHeld(job.tenant(), job.job(), incarnation)) {
    joins_.Join(held.request, held.peer_address, std::move(held.answer));
  }
}

std::list<HeldJoin> RackOpening::TakeHeld(const std::string& tenant, const std::string& job,
                                          Incarnation incarnation) {
  // Joins at a rack's first daemon do not name the run; those at its other daemons do.
  const std::uint64_t asked_for = context_.options.is_anchor() ? 0 : incarnation.value;
  return held_.Take(tenant, job, asked_for);
}

TimeNs RackOpening::NextDeadline() const {
  PHUB_ON_CONTROL();
  const TimeNs first = held_.FirstDeadline();
  return first == kNever ? kNever : first + ExtraPatience();
}

DurationNs RackOpening::ExtraPatience() const {
  return survey_.MayBeMeasuring() ? kSurveyPatience : 0;
}

void RackOpening::RefuseLate(TimeNs now) {
  PHUB_ON_CONTROL();
  for (const HeldJoin& late : held_.TakeLate(now - ExtraPatience())) {
    late.answer(
        context_.Refuse(ControlCounter::joins_refused_rack,
                        absl::UnavailableError(fmt::format("job {} was not opened: {}",
                                                           late.request.job(), WhyNotOpened()))),
        {});
  }
}

std::string RackOpening::WhatRanksWaitFor(const std::string& tenant, const std::string& job) const {
  PHUB_ON_CONTROL();
  const std::string opener = context_.options.DescribeRack(RackIndex{0});
  if (held_.Has(tenant, job)) {
    if (survey_.AwaitsSurvey()) {
      return fmt::format(
          "the job's plan is not ready: it needs the racks' topology, which is {}; to set it, run "
          "phubctl plan probe --apply",
          survey_.DescribeTopology().state);
    }
    if (survey_.MayBeMeasuring()) {
      return fmt::format(
          "the job's plan is not ready: {} makes it, and may still be measuring the racks' "
          "topology; its log says why (event=survey_begun, event=survey_failed)",
          opener);
    }
    return WhyNotOpened();
  }
  const Job* const run = jobs_.FindRunningJob(tenant, job);
  if (run == nullptr || run->rack_run == nullptr || run->rack_run->protocol.standing()) return {};
  const std::string missing = UnreadyRacks(*run->rack_run);
  return fmt::format("not all racks are ready for the job: {}",
                     missing.empty() ? "see phubctl job get at " + opener : missing);
}

std::string RackOpening::WhyNotOpened() const {
  const std::string opener = context_.options.DescribeRack(RackIndex{0});
  if (survey_.MayBeMeasuring()) {
    return fmt::format(
        "{} has not opened it yet and may still be measuring the racks' topology; try again later",
        opener);
  }
  if (context_.options.rack_index == 0) {
    return fmt::format("an older run of the job has not ended at {} yet; try again later", opener);
  }
  return fmt::format(
      "{}, which opens jobs that span racks, does not answer; is its phubd running?{}", opener,
      known_.DescribeTrouble(RackIndex{0}));
}

}  // namespace phub::server
