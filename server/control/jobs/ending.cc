#include "server/control/jobs/ending.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/control/on_control.h"
#include "server/control/text.h"
namespace phub::server {

v1::Fault Ending::MakeFault(const Job& job, const char* code, const std::string& what) const {
  PHUB_ON_CONTROL();
  v1::Fault fault;
  fault.set_code(code);
  fault.set_message(fmt::format("job {} failed: {} ({})", job.name(), what, code));
  fault.set_tenant(job.account.tenant);
  fault.set_job(job.name());
  return fault;
}

void Ending::BlameRank(const Job& job, Rank rank, v1::Fault& fault) const {
  PHUB_ON_CONTROL();
  if (rank.value >= job.members.size()) return;
  const Member& member = job.members[rank.value];
  fault.set_has_rank(true);
  fault.set_rank(rank.value + job.config.rank_base);
  fault.set_host(member.host);
  fault.set_age_ns(member.last_heard == 0 ? 0 : context_.clock.Now() - member.last_heard);
}

void Ending::FailOverKeys(Job& job, Rank rank, const std::string& what) {
  context_.counters.Add(ControlCounter::keys_refused_mismatch);
  v1::Fault fault = MakeFault(job, "keys_mismatch", what);
  BlameRank(job, rank, fault);
  Fail(job, std::move(fault));
}

void Ending::AnswerAllPending(Job& job, const absl::Status& status) {
  std::list<PendingCall> calls;
  calls.swap(job.pending);
  for (PendingCall& call : calls) call.fail(status);
  for (Member& member : job.members) {
    for (const auto& [number, pending] : std::exchange(member.barriers, {}))
      pending.answer(status, {});
  }
  for (JobObserver* each : jobs_.observers()) each->OnOver(job, status);
}

// Notifies the ranks first, perhaps after other racks had time to say what they know. Their lanes
// close later, when the core loops end the job.
void Ending::Fail(Job& job, v1::Fault fault) {
  PHUB_ON_CONTROL();
  if (!job.running()) return;
  job.state = Job::State::kFailed;
  job.fault = std::move(fault);
  job.diagnosis.reset();
  job.ended_at = context_.clock.Now();
  context_.counters.Add(ControlCounter::jobs_failed);
  context_.log.Error("event=job_failed tenant={} job=\"{}\" incarnation={} code={} message=\"{}\"",
                     job.account.tenant, job.name(), FormatIncarnation(job.account.incarnation),
                     job.fault.code(), job.fault.message());
  job.unannounced = true;
  job.announce_at = job.ended_at;
  for (JobObserver* each : jobs_.observers()) each->OnFailed(job);
  job.end_commands_at = job.announce_at + context_.options.teardown_delay;
  if (job.announce_at <= job.ended_at) Announce(job);
}

void Ending::Announce(Job& job) {
  PHUB_ON_CONTROL();
  if (!std::exchange(job.unannounced, false)) return;
  job.end_commands_at = context_.clock.Now() + context_.options.teardown_delay;
  v1::SessionEvent event;
  *event.mutable_job_failed()->mutable_fault() = job.fault;
  for (Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
  AnswerAllPending(job, absl::AbortedError(job.fault.message()));
  for (const auto& call : std::exchange(job.on_announced, {})) call();
}

void Ending::TakeFirstFault(Job& job, const v1::Fault& first) {
  PHUB_ON_CONTROL();
  if (!job.unannounced) return;
  if (!first.code().empty() && first.message() != job.fault.message()) {
    context_.log.Info(
        "event=job_failed_elsewhere_first tenant={} job=\"{}\" code={} message=\"{}\"",
        job.account.tenant, job.name(), first.code(), first.message());
    job.fault = first;
  }
  Announce(job);
}

void Ending::EndInOrder(Job& job) {
  PHUB_ON_CONTROL();
  job.state = Job::State::kEnded;
  job.ended_at = context_.clock.Now();
  job.end_commands_at = job.ended_at;
  context_.counters.Add(ControlCounter::jobs_ended);
  context_.log.Info("event=job_ended tenant={} job=\"{}\" incarnation={}", job.account.tenant,
                    job.name(), FormatIncarnation(job.account.incarnation));
  AnswerAllPending(job, absl::FailedPreconditionError(
                            fmt::format("job {} ended: every rank has left", job.name())));
  SendEndCommands(job);
}

void Ending::SendEndCommands(Job& job) {
  PHUB_ON_CONTROL();
  job.end_commands_sent = true;
  shares_.ShareOutAgain(job.account.tenant);
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    context_.cores[core].Send({.kind = Command::Kind::kEndJob, .shard = job.shards[core].get()});
  }
}

// Freeing some GiB takes as long as prefaulting them, so the prefaulter does it if there is one.
void Ending::FreeMemory(Job& job) {
  auto unwanted =
      std::make_shared<std::vector<std::shared_ptr<const void>>>(std::exchange(job.unwanted, {}));
  const auto add = [&](BatchRecord& record) {
    unwanted->insert(unwanted->end(), record.parts.begin(), record.parts.end());
    unwanted->insert(unwanted->end(), record.exchange_parts.begin(), record.exchange_parts.end());
    unwanted->push_back(record.parameters.shared.shared());
    unwanted->push_back(record.parameters.ordinary);
    unwanted->push_back(std::move(record.keys));
    unwanted->push_back(std::move(record.placements));
  };
  for (BatchRecord& record : job.batches) add(record);
  for (const std::shared_ptr<Group>& group : job.groups) {
    for (const std::shared_ptr<BatchRecord>& record : group->batches) add(*record);
    unwanted->push_back(group);
  }
  job.groups.clear();
  if (job.exchange != nullptr) {
    auto& batches = job.exchange->batches;
    unwanted->insert(unwanted->end(), batches.begin(), batches.end());
    batches.clear();
  }
  for (Member& member : job.members) {
    for (RankBatch& batch : member.memory.batches) unwanted->push_back(batch.worker);
    for (LanePlace& place : member.lanes) unwanted->push_back(place.staging);
    member.memory = {};
  }
  job.batches.clear();
  job.let_go = host_memory_.Free(job.account.incarnation, std::move(unwanted));
}

// Every core loop has released the job. Its memory is freed; its record is kept for a while.
void Ending::Release(Job& job) {
  PHUB_ON_CONTROL();
  for (StallQuery& query : job.queries) {
    if (query.done) std::exchange(query.done, nullptr)(query);
  }
  job.queries.clear();
  totals_.NoteTotals(job);
  jobs_.ForgetShards(job);
  job.shards.clear();
  for (JobObserver* each : jobs_.observers()) each->OnReleased(job);
  if (job.exchange != nullptr) job.exchange->shards.clear();
  job.keys.clear();
  job.unwanted.push_back(std::move(job.key_names));
  FreeMemory(job);
  const absl::Status status =
      job.state == Job::State::kFailed ? absl::AbortedError(job.fault.message()) : absl::OkStatus();
  for (Member& member : job.members) {
    member.lanes.clear();
    if (member.sink) std::exchange(member.sink, nullptr)->End(status);
  }
}

// The account closes last. A job admitted afterwards allocates its memory at once, and devices need
// time to unpin the memory of this job.
void Ending::CloseAccount(Job& job) {
  job.let_go.clear();
  const std::uint64_t bytes = context_.ledger.Close(job.account);
  context_.log.Info("event=job_released tenant={} job=\"{}\" incarnation={} memory_bytes={}",
                    job.account.tenant, job.name(), FormatIncarnation(job.account.incarnation),
                    bytes);
}

void Ending::ReapReleased() {
  PHUB_ON_CONTROL();
  const auto is_done = [](const DoneFlag& each) { return each->load(); };
  for (auto next = jobs_.jobs().begin(); next != jobs_.jobs().end();) {
    Job& job = **next++;
    // Work of other threads refers to its job, and its memory is charged to the job.
    if (!job.released() || job.key_build != nullptr || job.long_work > 0) continue;
    if (!std::ranges::all_of(job.let_go, is_done)) continue;
    CloseAccount(job);
    const std::vector<std::function<void()>> calls = std::exchange(job.on_closed, {});
    jobs_.Remember(job);
    for (const auto& call : calls) call();
  }
  host_memory_.left().Check();
  while (jobs_.ended().size() > context_.options.ended_jobs_max) {
    for (const Member& member : jobs_.ended().front()->members) sessions_.ForgetSessions(member);
    jobs_.ForgetOldest();
  }
}

}  // namespace phub::server
