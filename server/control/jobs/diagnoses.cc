#include "server/control/jobs/diagnoses.h"

#include <utility>

#include "common/base/printable.h"
#include "server/control/jobs/conflict_text.h"
#include "server/control/jobs/group_text.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr const char* kWorkerSilent = "worker_silent";
constexpr const char* kWorkerDied = "worker_died";
constexpr const char* kWorkerLost = "worker_lost";  // policy wait: it did not return in time

constexpr std::size_t kSentenceBytesMax = 2048;  // several times the length of a fault message

// Completes "rank 2 ...", for faults that concern one rank.
const char* Misdeed(FaultCode code) {
  switch (code) {
    case FaultCode::kWrongIncarnation: return "sent a message for another run of the job";
    case FaultCode::kWrongEpoch: return "sent a message with the wrong membership epoch";
    case FaultCode::kChunkRange: return "sent a chunk that the core loop does not own";
    case FaultCode::kSlotRange: return "used a staging slot that its lane does not have";
    case FaultCode::kSlotOccupied: return "pushed into a staging slot that was still in use";
    case FaultCode::kPayloadSize: return "sent a chunk of the wrong size";
    case FaultCode::kUnexpectedKind:
      return "sent a kind of message that this job does not accept from workers";
    case FaultCode::kStaleIteration: return "pushed an iteration that is already complete";
    case FaultCode::kIterationGap: return "pushed more than one iteration ahead of the daemon";
    case FaultCode::kUnknownHyperParameters:
      return "pushed with a version of the hyper-parameters that was not announced";
    case FaultCode::kHyperParametersRange:
      return "announced hyper-parameters that are malformed, too old or for an unknown key";
    case FaultCode::kType: return "sent elements of a type other than the key's";
    case FaultCode::kReplyAddress:
      return "asked for a reply in shared memory that it does not have";
    case FaultCode::kEncoding:
      return "sent a compressed gradient with a scale or an index that no encoder makes";
    case FaultCode::kAlignment: return "used memory that is not aligned to the element type";
    case FaultCode::kVersionGone:
      return "pulled a version of the parameters that the daemon does not keep";
    case FaultCode::kNoCheckpoint:
      return "called LoadCheckpoint, but the daemon has no checkpoint loaded for the key";
    case FaultCode::kNotMember: return "pushed a key of a group that it is not a member of";
    case FaultCode::kKeyInUse:
      return "called RemoveKeys, but still uses a key that it removes, or its memory";
    case FaultCode::kDecision:
      return "sent a clip or skip decision with an invalid scale, or for an iteration that is not "
             "summed";
    default: return "violated the protocol";
  }
}

// The round that has waited longest for the rank, over all cores.
const StallReport::Entry* FindWaitingFor(const StallQuery& query, Rank rank) {
  const StallReport::Entry* oldest = nullptr;
  for (std::size_t core = 0; core < query.reports.size(); ++core) {
    if (!query.answered[core]) continue;  // the core loop may still be writing the report
    const StallReport& report = *query.reports[core];
    for (std::uint32_t i = 0; i < report.count; ++i) {
      const StallReport::Entry& entry = report.entries[i];
      if ((entry.missing[rank.value / 64] >> (rank.value % 64) & 1) == 0) continue;
      if (oldest == nullptr || entry.since < oldest->since) oldest = &entry;
    }
  }
  return oldest;
}

// Groups of several racks that wait for the rank, perhaps in other racks. Empty: it has none.
std::string DescribeGroupsOf(const Job& job, Rank rank) {
  std::string text;
  std::size_t count = 0;
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (group->exchange == nullptr || group->members->IndexOf(rank) == kNoMember) continue;
    if (++count == 1) text = fmt::format("; it is a member of {}", Describe(*group));
  }
  return count > 1 ? fmt::format("{} and {} more", text, count - 1) : text;
}

// True if the rank's stream ended when its lane did, and did not return: both end when a process
// dies. A stream that had ended before says nothing.
bool EndedTogether(const Member& member, const Diagnosis& diagnosis, DurationNs tolerance) {
  return member.stream_ended_at != 0 && member.stream_ended_at >= diagnosis.begun_at - tolerance;
}

}  // namespace

// Queries the core loops for the key that waits for the lost rank. The answer only adds detail to
// the message, so the query has a short timeout.
void Diagnoses::BeginDiagnosis(Job& job, Diagnosis diagnosis) {
  PHUB_ON_CONTROL();
  const TimeNs now = context_.clock.Now();
  diagnosis.begun_at = now;
  diagnosis.deadline = now + context_.options.diagnosis_timeout;
  diagnosis.stream_grace = now + context_.options.diagnosis_timeout / 2;
  diagnosis.reported = job.keys.empty() && job.groups.empty();
  job.diagnosis = std::move(diagnosis);
  if (!diagnosis.reported) {
    const auto is_same = [&job, rank = job.diagnosis->rank, deadline = job.diagnosis->deadline] {
      return job.diagnosis && job.diagnosis->rank == rank && job.diagnosis->deadline == deadline;
    };
    stall_queries_.AskForStalls(
        job, context_.options.diagnosis_timeout, [&job, is_same](StallQuery& query) {
          if (!is_same()) return;
          job.diagnosis->reported = true;
          const StallReport::Entry* entry = FindWaitingFor(query, job.diagnosis->rank);
          if (entry == nullptr) return;
          job.diagnosis->key = DescribeKey(job, entry->key);
          job.diagnosis->iteration = entry->iteration.value;
        });
  }
  AdvanceDiagnosis(job, now);
}

void Diagnoses::AdvanceDiagnosis(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (!job.diagnosis) return;
  const Diagnosis& diagnosis = *job.diagnosis;
  const bool awaited = diagnosis.cause == Diagnosis::Cause::kAwaitedInVain;
  if (awaited && job.members[diagnosis.rank.value].state != Member::State::kLost) {
    job.diagnosis.reset();  // the rank returned at the last moment
    return;
  }
  // A live process reports within the grace period why it closed its lane (Leave), or attends
  // again.
  const bool stream_settled =
      diagnosis.cause != Diagnosis::Cause::kLaneLost || now >= diagnosis.stream_grace;
  if ((diagnosis.reported && stream_settled) || now >= diagnosis.deadline) ConcludeDiagnosis(job);
}

void Diagnoses::ConcludeDiagnosis(Job& job) {
  PHUB_ON_CONTROL();
  const Diagnosis diagnosis = *std::exchange(job.diagnosis, std::nullopt);
  Member& member = job.members[diagnosis.rank.value];
  const std::string who = DescribeRank(job, diagnosis.rank);
  const std::string age = FormatAge(context_.clock.Now() - member.last_heard);
  const char* code = kWorkerSilent;
  const DurationNs timeout = context_.options.liveness_timeout;
  std::string limit = fmt::format("liveness_timeout {}", FormatAge(timeout));
  if (member.opens_lanes)
    limit += fmt::format("; {} until its lanes are open", FormatAge(PatienceWith(member, timeout)));
  std::string what = fmt::format("{} sent no heartbeat for {} ({})", who, age, limit);
  if (!diagnosis.loss.empty()) what = fmt::format("{} {}", who, diagnosis.loss);
  if (diagnosis.cause == Diagnosis::Cause::kLaneSilent) code = ToString(FaultCode::kLaneLost);
  if (diagnosis.cause == Diagnosis::Cause::kLaneLost) {
    const std::string lane = fmt::format("lane to core {}", diagnosis.core.value);
    if (EndedTogether(member, diagnosis, context_.options.diagnosis_timeout)) {
      code = kWorkerDied;
      what = fmt::format(
          "{} died: its {} was lost ({}) and its heartbeat stream broke; last contact {} ago", who,
          lane, diagnosis.loss, age);
    } else if (member.stream_ended_at != 0) {
      code = ToString(FaultCode::kLaneLost);
      what = fmt::format(
          "{} lost its {} ({}); it has had no heartbeat stream for {}; last contact {} ago", who,
          lane, diagnosis.loss, FormatAge(context_.clock.Now() - member.stream_ended_at), age);
    } else {
      code = ToString(FaultCode::kLaneLost);
      what = fmt::format(
          "{} lost its {} ({}), but its heartbeat stream did not break; last contact {} ago", who,
          lane, diagnosis.loss, age);
    }
  }
  if (diagnosis.cause == Diagnosis::Cause::kAwaitedInVain) {
    code = kWorkerLost;
    what = DescribeAbsence(job, diagnosis.rank);
  }
  if (!diagnosis.key.empty()) {
    what += fmt::format("; key {} iteration {} waits for it", diagnosis.key, diagnosis.iteration);
  }
  what += DescribeGroupsOf(job, diagnosis.rank);
  v1::Fault fault = ending_.MakeFault(job, code, what);
  ending_.BlameRank(job, diagnosis.rank, fault);
  fault.set_key(diagnosis.key);
  fault.set_iteration(diagnosis.iteration);
  member.state = Member::State::kDead;
  ending_.Fail(job, std::move(fault));
}

void Diagnoses::FailOverCoreFault(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  if (event.code == FaultCode::kNonFinite) NoteNonFinite(job, event);
  const bool has_rank = event.source.is_worker();
  const std::string who = has_rank ? DescribeRank(job, event.source.rank()) : "nobody";
  const std::string other =
      event.other.is_worker() ? DescribeRank(job, event.other.rank()) : std::string();
  std::string what;
  switch (event.code) {
    case FaultCode::kProtocol:
      what = fmt::format("{} violated the protocol of its lane to core {} ({})", who, core.value,
                         DescribeLoss(event));
      break;
    case FaultCode::kHyperParametersMismatch:
    case FaultCode::kRoundMismatch:
    case FaultCode::kDecisionMismatch:
      what = DescribeConflict(event.code, event.shard->conflict, who, other);
      break;
    case FaultCode::kDepartedRank:
      what = fmt::format("{} has left the job, but {} takes part in a round that needs it", who,
                         other);
      break;
    case FaultCode::kNonFinite:
      what = has_rank ? fmt::format("{} pushed NaN or infinity", who)
                      : "the sum of finite gradients overflowed";
      break;
    default: what = fmt::format("{} {}", who, Misdeed(event.code)); break;
  }
  const bool has_key = HasKey(job, event.key);
  if (has_key) what += fmt::format("; key {}", DescribeKey(job, event.key));
  if (has_key && event.iteration.value > 0) {
    what += fmt::format(" iteration {}", event.iteration.value);
  }
  v1::Fault fault = ending_.MakeFault(job, ToString(event.code), what);
  if (has_rank) ending_.BlameRank(job, event.source.rank(), fault);
  if (has_key) fault.set_key(DescribeKey(job, event.key));
  fault.set_iteration(event.iteration.value);
  ending_.Fail(job, std::move(fault));
}

// Every core loop reports the first sum of its shard that is not finite; only the first report of
// the job is logged.
void Diagnoses::NoteNonFinite(Job& job, const Event& event) {
  PHUB_ON_CONTROL();
  if (!job.nonfinite_first.empty()) return;
  const bool has_rank = event.source.is_worker();
  job.nonfinite_first = fmt::format(
      "{}, key {}, iteration {}",
      has_rank ? DescribeRankBriefly(job, event.source.rank()) : std::string("overflow of the sum"),
      DescribeKey(job, event.key), event.iteration.value);
  context_.log.Warning("event=nonfinite_gradient tenant={} job=\"{}\" first=\"{}\" screening={}",
                       job.account.tenant, job.name(), job.nonfinite_first,
                       ToString(job.settings.screening));
}

std::string Diagnoses::DescribeAbsence(const Job& job, Rank rank) const {
  const Member& member = job.members[rank.value];
  return fmt::format("{} was lost {} ago: {}; it did not come back within wait_timeout ({})",
                     DescribeRank(job, rank), FormatAge(context_.clock.Now() - member.lost_since),
                     member.absence, FormatAge(job.settings.wait_timeout));
}

void Diagnoses::EndByVerdict(Job& job, Rank rank, const std::string& verdict) {
  PHUB_ON_CONTROL();
  context_.counters.Add(ControlCounter::jobs_ended_elsewhere);
  context_.log.Info("event=job_ended_elsewhere tenant={} job=\"{}\" rank={}", job.account.tenant,
                    job.name(), rank.value);
  v1::Fault fault;
  fault.set_code("failed_elsewhere");
  fault.set_message(Printable(verdict, kSentenceBytesMax));
  fault.set_tenant(job.account.tenant);
  fault.set_job(job.name());
  ending_.Fail(job, std::move(fault));
}

}  // namespace phub::server
