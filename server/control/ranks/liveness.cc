#include "server/control/ranks/liveness.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/control/on_control.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kForgivenMax = 4;  // in a row, without a heartbeat

}  // namespace

absl::StatusOr<StreamId> Liveness::AttachStream(std::string_view session_id,
                                                std::shared_ptr<EventSink> sink) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindSession(session_id);
  if (!seat.ok()) return seat.status();
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  const StreamId id = ++streams_made_;
  context_.counters.Add(ControlCounter::streams_attached);
  for (JobObserver* each : jobs_.observers()) each->OnAttaching(job, *sink);
  if (job.state == Job::State::kFailed && !job.unannounced) {
    v1::SessionEvent event;
    *event.mutable_job_failed()->mutable_fault() = job.fault;
    sink->Send(event);
  }
  if (job.released()) {
    sink->End(job.state == Job::State::kFailed ? absl::AbortedError(job.fault.message())
                                               : absl::OkStatus());
    return id;
  }
  if (context_.drain.draining) {  // ranks that attended before got the same event from TellAll
    v1::SessionEvent event;
    event.mutable_draining()->set_deadline_ns(
        std::max<DurationNs>(0, context_.drain.deadline - context_.clock.Now()));
    sink->Send(event);
  }
  if (member.sink) {
    member.sink->End(absl::AbortedError("a newer Attend stream of this session replaced this one"));
  }
  member.sink = std::move(sink);
  member.stream = id;
  member.stream_ended_at = 0;
  NoteHeard(member, context_.clock.Now());
  presence_.SendAwaited(job, seat->rank);
  presence_.CheckPresence(job, seat->rank);
  return id;
}

absl::Status Liveness::Heartbeat(std::string_view session_id, std::uint64_t sequence) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindSession(session_id);
  if (!seat.ok()) return seat.status();
  Member& member = seat->job->members[seat->rank.value];
  NoteHeard(member, context_.clock.Now());
  presence_.CheckPresence(*seat->job, seat->rank);
  context_.counters.Add(ControlCounter::heartbeats);
  if (member.sink) {
    v1::SessionEvent event;
    event.mutable_heartbeat()->set_sequence(sequence);
    member.sink->Send(event);
  }
  return absl::OkStatus();
}

void Liveness::DetachStream(std::string_view session_id, StreamId stream) {
  PHUB_ON_CONTROL();
  const Seating* const seat = sessions_.Find(session_id);
  if (seat == nullptr) return;
  Member& member = seat->job->members[seat->rank.value];
  if (member.stream != stream || !member.sink) return;
  member.sink.reset();
  member.stream_ended_at = context_.clock.Now();
  context_.counters.Add(ControlCounter::streams_detached);
}

void Liveness::CheckLiveness(TimeNs now) {
  PHUB_ON_CONTROL();
  lanes_.Check(now);
  for (const auto& job : jobs_.jobs()) {
    for (std::uint32_t rank = 0; rank < job->members.size(); ++rank) {
      if (!job->running() || job->diagnosis) break;
      Member& member = job->members[rank];
      if (!member.present() || member.silent || member.lanes_kept ||
          now - member.last_heard < PatienceWith(member, context_.options.liveness_timeout)) {
        continue;
      }
      context_.counters.Add(ControlCounter::workers_silent);
      if (job->settings.on_loss == LossPolicy::kWait) {
        member.silent = true;
        presence_.CheckPresence(*job, Rank{rank});
        continue;
      }
      Diagnosis diagnosis;
      diagnosis.cause = Diagnosis::Cause::kSilent;
      diagnosis.rank = Rank{rank};
      diagnoses_.BeginDiagnosis(*job, std::move(diagnosis));
    }
  }
}

void Liveness::CheckAbandoned(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (!job.running() || job.nobody_since == 0 || job.diagnosis ||
      now - job.nobody_since < context_.options.abandoned_timeout) {
    return;
  }
  context_.counters.Add(ControlCounter::jobs_abandoned);
  if (job.rack_run != nullptr) {  // the other racks must learn of it
    return ending_.Fail(
        job,
        ending_.MakeFault(
            job, "abandoned",
            fmt::format("{} has no ranks left in the job, and some of its ranks never committed "
                        "their place",
                        context_.options.DescribeRack(RackIndex{context_.options.rack_index}))));
  }
  ending_.EndInOrder(job);
}

void Liveness::NoteOutage(TimeNs since) {
  PHUB_ON_CONTROL();
  const TimeNs began = std::exchange(context_.outage_since, since);
  if (since != 0) {
    LogWarning("event=control_port_out since_ms={}", (context_.clock.Now() - since) / kMillisecond);
    return;
  }
  LogInfo("event=control_port_back after_ms={}", (context_.clock.Now() - began) / kMillisecond);
  for (const auto& job : jobs_.jobs()) presence_.ExtendAbsences(*job, began);
}

void Liveness::ForgiveSilence(DurationNs duration) {
  PHUB_ON_CONTROL();
  context_.counters.Add(ControlCounter::silence_forgiven);
  LogWarning("event=silence_forgiven duration_ns={}", duration);
  const TimeNs now = context_.clock.Now();
  peer_racks_.ForgiveSilence(duration);
  for (const auto& job : jobs_.jobs()) {
    for (Member& member : job->members) {
      const bool heard_of = member.present() || member.state == Member::State::kReserved;
      if (!heard_of || member.forgiven >= kForgivenMax) continue;
      ++member.forgiven;
      if (member.state == Member::State::kLost) member.awaited_until += duration;
      member.last_heard = std::clamp(member.last_heard + duration,
                                     now - context_.options.liveness_timeout / 2, now);
    }
  }
}

}  // namespace phub::server
