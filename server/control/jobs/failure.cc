#include <algorithm>

#include "common/base/log.h"
#include "server/control/racks/rack_run.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr const char* kWorkerSilent = "worker_silent";
constexpr const char* kWorkerDied = "worker_died";
constexpr const char* kWorkerLost = "worker_lost";  // policy wait: it did not come back

// What a rank did, for faults that concern one rank.
const char* Misdeed(FaultCode code) {
  switch (code) {
    case FaultCode::kWrongIncarnation: return "sent a message that names another run of the job";
    case FaultCode::kWrongEpoch: return "sent a message of another membership epoch";
    case FaultCode::kChunkRange: return "sent a chunk that the core does not own";
    case FaultCode::kSlotRange: return "named a staging slot that its lane does not have";
    case FaultCode::kSlotOccupied: return "sent into a staging slot that was still in use";
    case FaultCode::kPayloadSize: return "sent a chunk of the wrong size";
    case FaultCode::kUnexpectedKind:
      return "sent a message that this job does not take from a worker";
    case FaultCode::kStaleIteration: return "pushed an iteration that is over";
    case FaultCode::kIterationGap: return "pushed an iteration more than one ahead of the server's";
    case FaultCode::kUnknownRecord: return "named hyper-parameters that it has not announced";
    case FaultCode::kRecordRange: return "announced hyper-parameters that are malformed or too old";
    case FaultCode::kType: return "sent elements of another type than the key's";
    case FaultCode::kReplyAddress: return "named shared memory that it does not have";
    case FaultCode::kAlignment: return "named memory that is not aligned to its elements";
    case FaultCode::kVersionGone: return "asked for a version that is not kept";
    case FaultCode::kNoState: return "loads saved state that was not brought";
    case FaultCode::kDecision: return "decided about an iteration that it cannot know to be summed";
    default: return "broke the protocol";
  }
}

// The round that waits longest for a rank, over all cores.
const StallReport::Entry* FindWaitingFor(const StallQuery& query, Rank rank) {
  const StallReport::Entry* oldest = nullptr;
  for (std::size_t core = 0; core < query.reports.size(); ++core) {
    if (!query.answered[core]) continue;  // the core loop may still be writing
    const StallReport& report = *query.reports[core];
    for (std::uint32_t i = 0; i < report.count; ++i) {
      const StallReport::Entry& entry = report.entries[i];
      if ((entry.missing[rank.value / 64] >> (rank.value % 64) & 1) == 0) continue;
      if (oldest == nullptr || entry.since < oldest->since) oldest = &entry;
    }
  }
  return oldest;
}

}  // namespace

// Asks which key waits for the lost rank. The answer only adds to the text, so it is waited for a
// short, bounded time.
void Control::State::BeginDiagnosis(Job& job, Diagnosis diagnosis) {
  const TimeNs now = clock.Now();
  diagnosis.deadline = now + options.diagnosis_timeout;
  diagnosis.stream_grace = now + options.diagnosis_timeout / 2;
  diagnosis.reported = job.keys.empty();
  job.diagnosis = std::move(diagnosis);
  if (!job.keys.empty()) {
    const auto is_same = [&job, rank = job.diagnosis->rank, deadline = job.diagnosis->deadline] {
      return job.diagnosis && job.diagnosis->rank == rank && job.diagnosis->deadline == deadline;
    };
    AskForStalls(job, options.diagnosis_timeout, [&job, is_same](StallQuery& query) {
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

void Control::State::AdvanceDiagnosis(Job& job, TimeNs now) {
  if (!job.diagnosis) return;
  const Diagnosis& diagnosis = *job.diagnosis;
  const bool awaited = diagnosis.cause == Diagnosis::Cause::kAwaitedInVain;
  if (awaited && job.members[diagnosis.rank.value].state != Member::State::kLost) {
    job.diagnosis.reset();  // it came back at the last moment
    return;
  }
  const bool stream_settled = diagnosis.cause != Diagnosis::Cause::kLaneLost ||
                              job.members[diagnosis.rank.value].sink == nullptr ||
                              now >= diagnosis.stream_grace;
  if ((diagnosis.reported && stream_settled) || now >= diagnosis.deadline) ConcludeDiagnosis(job);
}

void Control::State::ConcludeDiagnosis(Job& job) {
  const Diagnosis diagnosis = *std::exchange(job.diagnosis, std::nullopt);
  Member& member = job.members[diagnosis.rank.value];
  const std::string who = DescribeRank(job, diagnosis.rank);
  const std::string age = FormatAge(clock.Now() - member.last_heard);
  const char* code = kWorkerSilent;
  std::string what = fmt::format("{} was last heard of {} ago", who, age);
  if (diagnosis.cause == Diagnosis::Cause::kLaneLost) {
    const std::string lane = fmt::format("lane to core {}", diagnosis.core.value);
    if (member.stream_broke) {
      code = kWorkerDied;
      what = fmt::format(
          "{} died: its {} was lost ({}) and its heartbeats ended, last heard of {} ago", who, lane,
          diagnosis.loss, age);
    } else {
      code = ToString(FaultCode::kLaneLost);
      what = fmt::format("{} lost its {} ({}), though its last heartbeat was {} ago", who, lane,
                         diagnosis.loss, age);
    }
  }
  if (diagnosis.cause == Diagnosis::Cause::kAwaitedInVain) {
    code = kWorkerLost;
    what = DescribeAbsence(job, diagnosis.rank);
  }
  if (!diagnosis.key.empty()) {
    what += fmt::format("; key {} iteration {} waits for it", diagnosis.key, diagnosis.iteration);
  }
  v1::Fault fault = MakeFault(job, code, what);
  BlameRank(job, diagnosis.rank, fault);
  fault.set_key(diagnosis.key);
  fault.set_iteration(diagnosis.iteration);
  member.state = Member::State::kDead;
  Fail(job, std::move(fault));
}

void Control::State::FailOverCoreFault(Job& job, CoreIndex core, const Event& event) {
  if (event.code == FaultCode::kNonFinite) NoteNonFinite(job, event);
  const bool has_rank = event.source.is_worker();
  const std::string who = has_rank ? DescribeRank(job, event.source.rank()) : "nobody";
  const std::string other =
      event.other.is_worker() ? DescribeRank(job, event.other.rank()) : std::string();
  std::string what;
  switch (event.code) {
    case FaultCode::kProtocol:
      what = fmt::format("{} broke the form of its lane to core {} ({})", who, core.value,
                         DescribeLoss(event.error, event.protocol_error, event.connection));
      break;
    case FaultCode::kRecordMismatch:
      what = fmt::format("{} and {} announced different hyper-parameters under one version", who,
                         other);
      break;
    case FaultCode::kRoundMismatch:
      what = fmt::format(
          "{} and {} pushed one round with different operation, root or hyper-parameters", who,
          other);
      break;
    case FaultCode::kDecisionMismatch:
      what = fmt::format("{} and {} decided differently about one iteration", who, other);
      break;
    case FaultCode::kDepartedRank:
      what = fmt::format("{} has left, and a round that {} takes part in needs it", who, other);
      break;
    case FaultCode::kNonFinite:
      what = has_rank ? fmt::format("{} pushed NaN or infinity", who)
                      : "the sum of finite gradients overflowed";
      break;
    default: what = fmt::format("{} {}", who, Misdeed(event.code)); break;
  }
  const bool has_key = event.key.value < job.keys.size();
  if (has_key) what += fmt::format("; key {}", DescribeKey(job, event.key));
  if (has_key && event.iteration.value > 0) {
    what += fmt::format(" iteration {}", event.iteration.value);
  }
  v1::Fault fault = MakeFault(job, ToString(event.code), what);
  if (has_rank) BlameRank(job, event.source.rank(), fault);
  if (has_key) fault.set_key(DescribeKey(job, event.key));
  fault.set_iteration(event.iteration.value);
  Fail(job, std::move(fault));
}

// The job's first sum that is not finite (others are only counted). Of other core loops there may
// be a first one, too.
void Control::State::NoteNonFinite(Job& job, const Event& event) {
  if (!job.nonfinite_first.empty()) return;
  const bool has_rank = event.source.is_worker();
  job.nonfinite_first = fmt::format(
      "{}, key {}, iteration {}",
      has_rank ? DescribeRankBriefly(job, event.source.rank()) : std::string("overflow of the sum"),
      DescribeKey(job, event.key), event.iteration.value);
  LogWarning("event=nonfinite_gradient tenant={} job=\"{}\" first=\"{}\" screening={}",
             job.account.tenant, job.name(), job.nonfinite_first, ToString(job.settings.screening));
}

v1::Fault Control::State::MakeFault(const Job& job, const char* code,
                                    const std::string& what) const {
  v1::Fault fault;
  fault.set_code(code);
  fault.set_message(fmt::format("job {} failed: {} ({})", job.name(), what, code));
  fault.set_tenant(job.account.tenant);
  fault.set_job(job.name());
  return fault;
}

void Control::State::BlameRank(const Job& job, Rank rank, v1::Fault& fault) const {
  if (rank.value >= job.members.size()) return;
  const Member& member = job.members[rank.value];
  fault.set_has_rank(true);
  fault.set_rank(rank.value + job.config.rank_base);
  fault.set_host(member.host);
  fault.set_age_ns(member.last_heard == 0 ? 0 : clock.Now() - member.last_heard);
}

void Control::State::AnswerAllPending(Job& job, const absl::Status& status) {
  std::list<PendingCall> calls;
  calls.swap(job.pending);
  for (PendingCall& call : calls) call.fail(status);
  for (Member& member : job.members) {
    for (const auto& [sequence, answer] : std::exchange(member.barriers, {})) answer(status, {});
  }
  AbandonSavedState(job, status);
}

// Tells everybody first; the lanes close a little later, when the core loops are told.
void Control::State::Fail(Job& job, v1::Fault fault) {
  if (!job.running()) return;
  job.state = Job::State::kFailed;
  job.fault = std::move(fault);
  job.diagnosis.reset();
  job.ended_at = clock.Now();
  job.end_commands_at = job.ended_at + options.teardown_delay;
  counters.Add(ControlCounter::jobs_failed);
  LogError("event=job_failed tenant={} job=\"{}\" incarnation={} code={} message=\"{}\"",
           job.account.tenant, job.name(), FormatIncarnation(job.account.incarnation),
           job.fault.code(), job.fault.message());
  v1::SessionEvent event;
  *event.mutable_job_failed()->mutable_fault() = job.fault;
  for (Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
  TellRacksOfFailure(job);
  AnswerAllPending(job, absl::AbortedError(job.fault.message()));
}

void Control::State::EndInOrder(Job& job) {
  job.state = Job::State::kEnded;
  job.ended_at = clock.Now();
  job.end_commands_at = job.ended_at;
  counters.Add(ControlCounter::jobs_ended);
  LogInfo("event=job_ended tenant={} job=\"{}\" incarnation={}", job.account.tenant, job.name(),
          FormatIncarnation(job.account.incarnation));
  AnswerAllPending(job, absl::FailedPreconditionError(
                            fmt::format("job {} ended: every rank has left", job.name())));
  SendEndCommands(job);
}

void Control::State::SendEndCommands(Job& job) {
  job.end_commands_sent = true;
  ShareOutAnew(job.account.tenant);
  for (std::size_t core = 0; core < links.size(); ++core) {
    links[core].Send({.kind = Command::Kind::kEndJob, .shard = job.shards[core].get()});
  }
}

// Giving back some GiB takes as long as taking them: elsewhere, if there is somebody.
void Control::State::FreeMemory(Job& job) {
  auto unwanted = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (BatchRecord& record : job.batches) {
    unwanted->insert(unwanted->end(), record.parts.begin(), record.parts.end());
    unwanted->push_back(record.parameters.shared.shared());
    unwanted->push_back(record.parameters.ordinary);
  }
  if (job.rack_run != nullptr) {
    auto& batches = job.rack_run->batches;
    unwanted->insert(unwanted->end(), batches.begin(), batches.end());
    batches.clear();
  }
  for (Member& member : job.members) {
    for (RankBatch& batch : member.memory.batches) unwanted->push_back(batch.worker);
    for (LanePlace& place : member.lanes) unwanted->push_back(place.staging);
    member.memory = {};
  }
  job.batches.clear();
  if (memory_listener != nullptr) {
    DoneFlag let_go = memory_listener->OnReleased(job.account.incarnation);
    if (let_go != nullptr) job.let_go.push_back(std::move(let_go));
  }
  if (page_taker != nullptr) job.let_go.push_back(page_taker->Free(std::move(unwanted)));
}

// Every core loop has let go. What the job held comes back; what is known of it stays for a while.
void Control::State::Release(Job& job) {
  for (StallQuery& query : job.queries) {
    if (query.done) std::exchange(query.done, nullptr)(query);
  }
  job.queries.clear();
  FreeSavedState(job);
  NoteTotals(job);
  for (const auto& shard : job.shards) shard_owners.erase(shard.get());
  job.shards.clear();
  if (job.rack_run != nullptr) {
    v1::ExchangeInfo kept;
    for (const std::string& endpoint : options.racks) kept.add_racks(endpoint);
    DescribeMeasures(*job.rack_run, kept);
    kept.clear_racks();
    job.rack_run->measured = std::move(kept);
    job.rack_run->shards.clear();
    for (PeerRack& rack : job.rack_run->racks) rack.lanes.clear();
  }
  FreeMemory(job);
  job.keys.clear();
  job.key_names.clear();
  const absl::Status status =
      job.state == Job::State::kFailed ? absl::AbortedError(job.fault.message()) : absl::OkStatus();
  for (Member& member : job.members) {
    member.lanes.clear();
    if (member.sink) std::exchange(member.sink, nullptr)->End(status);
  }
}

// Only now: whoever is admitted by it takes memory at once, and devices take their time to unpin.
void Control::State::CloseAccount(Job& job) {
  job.let_go.clear();
  const std::uint64_t bytes = ledger.Close(job.account);
  LogInfo("event=job_released tenant={} job=\"{}\" incarnation={} memory_bytes={}",
          job.account.tenant, job.name(), FormatIncarnation(job.account.incarnation), bytes);
  for (const auto& answer : std::exchange(job.evictions, {})) {
    answer(absl::OkStatus(), DescribeJob(job));
  }
}

}  // namespace phub::server
