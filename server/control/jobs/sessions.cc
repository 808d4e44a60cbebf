#include <algorithm>

#include "common/base/log.h"
#include "server/control/jobs/silence_guard.h"
#include "server/control/racks/rack_run.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::uint64_t kBarriersAtOnceMax = 64;

// Shorter lapses are covered by the client's sending four heartbeats per timeout.
constexpr int kForgivenFraction = 8;
constexpr std::uint32_t kForgivenMax = 4;  // in a row, without a heartbeat

}  // namespace

absl::StatusOr<Control::State::Seating> Control::State::FindSession(std::string_view session_id) {
  const auto found = sessions.find(session_id);
  if (found == sessions.end()) {
    counters.Add(ControlCounter::sessions_unknown);
    return absl::NotFoundError(
        "this daemon does not know the session: it restarted since, the job ended long ago, or the "
        "reservation lapsed before it was committed; join again");
  }
  const Seating& seat = found->second;
  if (seat.job->members[seat.rank.value].session_id != session_id) {
    return TakenOver(*seat.job, seat.rank);
  }
  return seat;
}

absl::StatusOr<Control::State::Seating> Control::State::FindRunning(std::string_view session_id) {
  absl::StatusOr<Seating> seat = FindSession(session_id);
  if (!seat.ok()) return seat;
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  if (job.state == Job::State::kFailed) return absl::AbortedError(job.fault.message());
  if (member.state == Member::State::kLeft) {
    return absl::FailedPreconditionError(
        fmt::format("{} has left job {}", DescribeRankBriefly(job, seat->rank), job.name()));
  }
  HearOf(member);
  return seat;
}

void Control::State::Barrier(const v1::BarrierRequest& request,
                             Answer<v1::BarrierResponse> answer) {
  const absl::StatusOr<Seating> seat = FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  if (absl::Status status = CheckAnchor(job); !status.ok()) return answer(status, {});
  Member& member = job.members[seat->rank.value];
  const std::uint64_t sequence = request.sequence();
  if (sequence < job.barriers_done) return answer(absl::OkStatus(), {});  // asked again
  // Threads of one worker may be in several barriers at once, and their calls may cross.
  if (sequence - job.barriers_done >= kBarriersAtOnceMax) {
    counters.Add(ControlCounter::barriers_refused);
    return answer(
        absl::InvalidArgumentError(fmt::format(
            "{} of job {} calls barrier {} too early; the next to complete is {}",
            DescribeRankBriefly(job, seat->rank), job.name(), sequence, job.barriers_done)),
        {});
  }
  Answer<v1::BarrierResponse>& place = member.barriers[sequence];
  if (place) {  // it asks again, as its connection broke, or is a new process
    place(absl::CancelledError(fmt::format("{} of job {} called barrier {} again",
                                           DescribeRankBriefly(job, seat->rank), job.name(),
                                           sequence)),
          {});
  }
  place = std::move(answer);
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (job.members[rank].state != Member::State::kLeft) continue;
    RefuseBarriersWithout(job, DescribeRank(job, Rank{rank}));
  }
  if (job.rack_run != nullptr) {
    for (const PeerRack& rack : job.rack_run->racks) {
      if (!rack.departed.empty()) RefuseBarriersWithout(job, rack.departed);
    }
  }
  CompleteBarriers(job);
}

void Control::State::CompleteBarriers(Job& job) {
  if (job.members.empty()) return;  // an aggregator is in none
  const auto waits = [&](const Member& member) {
    return member.barriers.contains(job.barriers_done);
  };
  while (std::all_of(job.members.begin(), job.members.end(), waits) && RacksReachedBarrier(job)) {
    counters.Add(ControlCounter::barriers);
    const std::uint64_t sequence = job.barriers_done++;
    for (Member& member : job.members) {
      member.barriers.extract(sequence).mapped()(absl::OkStatus(), {});
    }
  }
}

// A rank that left never comes to a barrier: whoever waits there would wait for ever.
void Control::State::RefuseBarriersWithout(Job& job, const std::string& departed) {
  for (Member& member : job.members) {
    for (const auto& [sequence, answer] : std::exchange(member.barriers, {})) {
      counters.Add(ControlCounter::barriers_refused);
      answer(
          absl::FailedPreconditionError(fmt::format(
              "barrier {} of job {} cannot complete: {} has left", sequence, job.name(), departed)),
          {});
    }
  }
}

void Control::State::Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer) {
  const absl::StatusOr<Seating> known = FindSession(request.session_id());
  if (!known.ok()) return answer(known.status(), {});
  if (known->job->members[known->rank.value].state == Member::State::kLeft) {
    return answer(absl::OkStatus(), {});  // asked again
  }
  const absl::StatusOr<Seating> seat = FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  // Else every rank that tries again meets this run here, which nobody can complete.
  const bool ends_run =
      request.run_is_over() && job.rack_run != nullptr && !request.verdict().empty();
  if (member.state == Member::State::kReserved && !ends_run) {
    counters.Add(ControlCounter::reservations_returned);
    FreeSeat(job, seat->rank, absl::CancelledError("the reservation was given back"));
    return answer(absl::OkStatus(), {});
  }
  if (!request.verdict().empty()) {
    EndByVerdict(job, seat->rank, request.verdict());
    return answer(absl::OkStatus(), {});
  }
  RefuseBarriersWithout(job, DescribeRank(job, seat->rank));
  if (job.rack_run != nullptr) {
    v1::PeerMessage message;
    message.mutable_rank_left()->set_rank(seat->rank.value + job.config.rank_base);
    message.mutable_rank_left()->set_host(member.host);
    message.mutable_rank_left()->set_barriers(job.barriers_done);
    SendToRacks(job.account.incarnation, message);
  }
  if (member.state == Member::State::kLost) EndAbsence(job, seat->rank, /*restarted=*/false);
  member.state = Member::State::kLeft;
  counters.Add(ControlCounter::leaves);
  LogInfo("event=rank_left tenant={} job=\"{}\" rank={} host=\"{}\"", job.account.tenant,
          job.name(), seat->rank.value, member.host);
  std::vector<Ticket> tickets;
  for (std::size_t core = 0; core < links.size(); ++core) {
    tickets.push_back(links[core].Send(
        {.kind = Command::Kind::kRankLeft, .rank = seat->rank, .shard = job.shards[core].get()}));
  }
  const auto is_present = [](const Member& each) { return each.present(); };
  if (std::none_of(job.members.begin(), job.members.end(), is_present)) {
    job.nobody_since = clock.Now();
  }
  job.pending.push_back({std::move(tickets), [answer] { answer(absl::OkStatus(), {}); },
                         [answer](const absl::Status& status) { answer(status, {}); }});
  AnswerAcknowledged(job);
}

absl::StatusOr<StreamId> Control::State::AttachStream(std::string_view session_id,
                                                      std::shared_ptr<EventSink> sink) {
  const absl::StatusOr<Seating> seat = FindSession(session_id);
  if (!seat.ok()) return seat.status();
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  const StreamId id = ++streams_made;
  counters.Add(ControlCounter::streams_attached);
  if (const auto saved = DescribeNewestSave(job, clock.Now())) {  // first: errors name it
    v1::SessionEvent event;
    *event.mutable_saved() = *saved;
    sink->Send(event);
  }
  if (job.state == Job::State::kFailed) {
    v1::SessionEvent event;
    *event.mutable_job_failed()->mutable_fault() = job.fault;
    sink->Send(event);
  }
  if (job.released()) {
    sink->End(job.state == Job::State::kFailed ? absl::AbortedError(job.fault.message())
                                               : absl::OkStatus());
    return id;
  }
  if (draining) {  // as TellAll said to those who were here
    v1::SessionEvent event;
    event.mutable_draining()->set_deadline_ns(
        std::max<DurationNs>(0, drain_deadline - clock.Now()));
    sink->Send(event);
  }
  if (member.sink) {
    member.sink->End(absl::AbortedError("a newer Attend stream of this session took over"));
  }
  member.sink = std::move(sink);
  member.stream = id;
  member.stream_broke = false;
  HearOf(member);
  SendAwaited(job, seat->rank, *member.sink);
  CheckPresence(job, seat->rank);
  return id;
}

absl::Status Control::State::Heartbeat(std::string_view session_id, std::uint64_t sequence) {
  const absl::StatusOr<Seating> seat = FindSession(session_id);
  if (!seat.ok()) return seat.status();
  Member& member = seat->job->members[seat->rank.value];
  HearOf(member);
  CheckPresence(*seat->job, seat->rank);
  counters.Add(ControlCounter::heartbeats);
  if (member.sink) {
    v1::SessionEvent event;
    event.mutable_heartbeat()->set_sequence(sequence);
    member.sink->Send(event);
  }
  return absl::OkStatus();
}

void Control::State::DetachStream(std::string_view session_id, StreamId stream) {
  const auto found = sessions.find(session_id);
  if (found == sessions.end()) return;
  Job& job = *found->second.job;
  Member& member = job.members[found->second.rank.value];
  if (member.stream != stream || !member.sink) return;
  member.sink.reset();
  member.stream_broke = true;
  counters.Add(ControlCounter::streams_detached);
  CheckPresence(job, found->second.rank);
  AdvanceDiagnosis(job, clock.Now());
}

void Control::State::CheckLiveness(TimeNs now) {
  for (const auto& job : jobs) {
    for (std::uint32_t rank = 0; rank < job->members.size(); ++rank) {
      if (!job->running() || job->diagnosis) break;
      Member& member = job->members[rank];
      if (!member.present() || member.silent ||
          now - member.last_heard < options.liveness_timeout) {
        continue;
      }
      counters.Add(ControlCounter::workers_silent);
      if (job->settings.on_loss == LossPolicy::kWait) {
        member.silent = true;
        CheckPresence(*job, Rank{rank});
        continue;
      }
      Diagnosis diagnosis;
      diagnosis.cause = Diagnosis::Cause::kSilent;
      diagnosis.rank = Rank{rank};
      BeginDiagnosis(*job, std::move(diagnosis));
    }
  }
}

void Control::State::CheckAbandoned(Job& job, TimeNs now) {
  if (!job.running() || job.nobody_since == 0 || job.diagnosis ||
      now - job.nobody_since < options.abandoned_timeout) {
    return;
  }
  counters.Add(ControlCounter::jobs_abandoned);
  if (job.rack_run != nullptr) {  // which the others have to hear
    return Fail(job, MakeFault(job, "abandoned",
                               fmt::format("{} has no rank in it any more, though some never came",
                                           DescribeRackBriefly(RackIndex{options.rack_index}))));
  }
  EndInOrder(job);
}

void Control::State::HearOf(Member& member) {
  member.last_heard = clock.Now();
  member.forgiven = 0;
  member.silent = false;
}

void Control::State::ForgiveSilence(DurationNs duration) {
  counters.Add(ControlCounter::silence_forgiven);
  LogWarning("event=silence_forgiven duration_ns={}", duration);
  const TimeNs now = clock.Now();
  for (KnownRack& rack : racks.known) {
    if (rack.last_heard != 0) rack.last_heard = std::min(now, rack.last_heard + duration);
  }
  for (const auto& job : jobs) {
    if (job->rack_run != nullptr && job->rack_run->put_off) job->rack_run->put_off->due += duration;
    for (Member& member : job->members) {
      const bool heard_of = member.present() || member.state == Member::State::kReserved;
      if (!heard_of || member.forgiven >= kForgivenMax) continue;
      ++member.forgiven;
      ForgiveAbsence(member, duration);
      member.last_heard =
          std::clamp(member.last_heard + duration, now - options.liveness_timeout / 2, now);
    }
  }
}

SilenceGuard::SilenceGuard(Control::State& state) : state_(state), begun_at_(state.clock.Now()) {}

SilenceGuard::~SilenceGuard() {
  const DurationNs taken = state_.clock.Now() - begun_at_;
  if (taken > state_.options.liveness_timeout / kForgivenFraction) state_.ForgiveSilence(taken);
}

}  // namespace phub::server
