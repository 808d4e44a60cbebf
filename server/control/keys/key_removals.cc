#include "server/control/keys/key_removals.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_text.h"
#include "server/control/keys/keys.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {

// A snapshot may hold the parts themselves, but only reads what their chunks are.
void TakeMemoryOf(BatchRecord& record, std::vector<std::shared_ptr<const void>>& memory) {
  for (const std::shared_ptr<KeyBatch>& part : record.parts) {
    for (MappedMemory* const each : {&part->masters, &part->accumulators, &part->state})
      memory.push_back(std::make_shared<MappedMemory>(std::move(*each)));
  }
  memory.insert(memory.end(), record.parts.begin(), record.parts.end());
  memory.insert(memory.end(), record.exchange_parts.begin(), record.exchange_parts.end());
  memory.push_back(record.parameters.shared.shared());
  memory.push_back(record.parameters.ordinary);
  record.parts.clear();
  record.exchange_parts.clear();
  record.parameters = {};
  memory.push_back(std::move(record.placements));
}

void ReturnPlaces(Job& job, const BatchRecord& record) {
  PHUB_CHECK(record.loads.size() == job.bins.size(), "job={}", job.name());
  const bool apart = !job.group_loads.empty();  // only groups of such jobs remove keys
  for (std::size_t i = 0; i < job.bins.size(); ++i)
    (apart ? job.group_loads[i] : job.bins[i].load_bytes) -= record.loads[i];
  for (const NumberRange& range : record.chunks)
    job.chunk_numbers[range.bin.value].Return(range.first, range.count);
}

// Errors of this call only: nothing is agreed on yet, and the job keeps its keys.
absl::Status KeyRemovals::CheckCall(const Job& job, Rank rank,
                                    const v1::RemoveKeysRequest& request) const {
  const Member& member = job.members[rank.value];
  if (request.sequence() != job.removals_done) {
    return absl::InvalidArgumentError(fmt::format(
        "{} called RemoveKeys of job {} with sequence {}; the job's next call has sequence {}",
        DescribeRankBriefly(job, rank), job.name(), request.sequence(), job.removals_done));
  }
  if (request.batches() != member.next_batch || request.first_batch() >= member.next_batch) {
    return absl::InvalidArgumentError(fmt::format(
        "{} called RemoveKeys of job {} from batch {} on, as if it had {} batches of keys, but it "
        "has {}",
        DescribeRankBriefly(job, rank), job.name(), request.first_batch(), request.batches(),
        member.next_batch));
  }
  if (absl::Status status = CheckRanks(job); !status.ok()) return status;
  return CheckRemovable(job, request.first_batch());
}

// A rank that has left will never call.
absl::Status KeyRemovals::CheckRanks(const Job& job) {
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (job.members[rank].state != Member::State::kLeft) continue;
    return absl::FailedPreconditionError(fmt::format("job {} cannot remove keys: {} has left",
                                                     job.name(), DescribeRank(job, Rank{rank})));
  }
  return absl::OkStatus();
}

// Jobs and keys that RemoveKeys does not support. The same on every rank.
absl::Status KeyRemovals::CheckRemovable(const Job& job, std::uint32_t first_batch) const {
  if (job.rack_run != nullptr) {
    return absl::FailedPreconditionError(
        fmt::format("job {} spans racks, and keys of such jobs cannot be removed: its racks do "
                    "not agree on a removal",
                    job.name()));
  }
  if (job.settings.restart) {
    return absl::FailedPreconditionError(
        fmt::format("job {} has restart=true, so its keys cannot be removed: a process that takes "
                    "over a rank adds all of them again",
                    job.name()));
  }
  if (host_memory_.registers_memory()) {
    return absl::FailedPreconditionError(
        fmt::format("job {} cannot remove keys: this daemon serves RDMA, and memory that is "
                    "registered with devices stays registered until the job ends",
                    job.name()));
  }
  for (std::size_t batch = first_batch; batch < job.batches.size(); ++batch) {
    if (job.keys.IsCollective(batch)) continue;
    const KeyList& keys = *job.batches[batch].keys;
    const auto ordinary =
        std::ranges::find_if(keys, [](const v1::KeySpec& key) { return !key.collective(); });
    return absl::FailedPreconditionError(
        fmt::format("key {} of job {} is not collective: keys that belong to iterations and "
                    "checkpoints cannot be removed",
                    ordinary->name(), job.name()));
  }
  return absl::OkStatus();
}

void KeyRemovals::RemoveKeys(const v1::RemoveKeysRequest& request,
                             Answer<v1::RemoveKeysResponse> answer) {
  PHUB_ON_CONTROL();
  if (request.group_id() != 0) return groups_.Remove(request, std::move(answer));
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  const Rank rank = seat->rank;
  if (request.sequence() + 1 == job.removals_done) return answer(absl::OkStatus(), {});  // a retry
  if (job.key_build != nullptr) {
    return Keys::AfterBuild(job, [this, request, answer] { RemoveKeys(request, answer); });
  }
  if (absl::Status status = CheckCall(job, rank, request); !status.ok())
    return answer(context_.Refuse(ControlCounter::key_removals_refused, status), {});
  if (!Agrees(job, rank, request.first_batch()))
    return answer(absl::InvalidArgumentError(job.fault.message()), {});
  if (job.removal == nullptr) {
    job.removal = std::make_shared<RemovalRun>();
    job.removal->first = rank;
    job.removal->first_batch = request.first_batch();
    job.removal->answers.resize(job.members.size());
  }
  Answer<v1::RemoveKeysResponse>& place = job.removal->answers[rank.value];
  if (place) {  // the worker reconnected, and calls again
    place(absl::CancelledError(
              fmt::format("{} of job {} called RemoveKeys again, which canceled this call",
                          DescribeRankBriefly(job, rank), job.name())),
          {});
  } else {
    ++job.removal->called_count;
  }
  place = std::move(answer);
  Advance(job);
}

// Every rank makes the same calls of AddKeys and RemoveKeys in the same order. False: the job has
// failed, because this rank and another one differ.
bool KeyRemovals::Agrees(Job& job, Rank rank, std::uint32_t first_batch) {
  const std::uint32_t own_batches = job.members[rank.value].next_batch;
  if (own_batches < job.batches.size()) {
    FailOverRemoval(job, rank, first_batch, job.batches[own_batches].first,
                    "AddKeys of " + DescribeKeys(*job.batches[own_batches].keys));
    return false;
  }
  if (job.removal == nullptr || job.removal->first_batch == first_batch) return true;
  FailOverRemoval(
      job, rank, first_batch, job.removal->first,
      "RemoveKeys of " + DescribeBatches(job, job.removal->first_batch, job.removal->first));
  return false;
}

void KeyRemovals::FailOverRemoval(Job& job, Rank rank, std::uint32_t first_batch, Rank other,
                                  const std::string& others_call) {
  ending_.FailOverKeys(
      job, rank,
      fmt::format("{} called {} where {} called RemoveKeys of {}", DescribeRankBriefly(job, other),
                  others_call, DescribeRankBriefly(job, rank),
                  DescribeBatches(job, first_batch, rank)));
}

// A call that is being answered refers to its batch by number; snapshots and loads that begin refer
// to chunks.
bool KeyRemovals::MayUnlink(const Job& job) const {
  if (job.removal->called_count < job.members.size() || !job.pending.empty()) return false;
  if (job.unlinking != nullptr) return false;
  if (!pending_calls_.KeysAcknowledged(job, job.batches.size())) return false;
  return std::ranges::none_of(jobs_.observers(),
                              [&](const JobObserver* each) { return each->RefersToKeys(job); });
}

bool KeyRemovals::Waits(const Job& job) {
  return job.removal != nullptr && job.removal->called_count == job.members.size();
}

void KeyRemovals::Advance(Job& job) {
  PHUB_ON_CONTROL();
  if (job.removal == nullptr || !job.running()) return;
  RemovalRun& run = *job.removal;
  if (run.state == RemovalRun::State::kGathering) {
    if (absl::Status status = CheckRanks(job); !status.ok()) return Refuse(job, status);
    if (MayUnlink(job)) Unlink(job);
    return;
  }
  const bool memory_free = run.memory_free == nullptr || run.memory_free->load();
  if (run.state == RemovalRun::State::kFreeing && run.names_free && memory_free) Finish(job);
}

// The tables shrink first: a core loop that has executed kRemoveKeys finds no such region.
void KeyRemovals::Unlink(Job& job) {
  RemovalRun& run = *job.removal;
  run.state = RemovalRun::State::kUnlinking;
  job.unlinking = &run.removal;
  run.removal.first_key = job.batches[run.first_batch].first_key;
  for (Member& member : job.members) {
    RankMemories::Withdrawn withdrawn = rank_memories_.Withdraw(member, run.first_batch);
    run.removal.shared.push_back(std::move(withdrawn.pushable));
    run.of_ranks.push_back(withdrawn.bytes);
    for (auto& each : withdrawn.memory) run.unwanted.push_back(std::move(each));
  }
  run.cores_left = context_.cores.size();
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    context_.cores[core].Send({.kind = Command::Kind::kRemoveKeys,
                               .shard = job.shards[core].get(),
                               .removal = &run.removal});
  }
}

void KeyRemovals::HandleKeysRemoved(Job& job, const Event& event) {
  PHUB_ON_CONTROL();
  // After a fault the memory is freed with the job.
  if (job.removal == nullptr || event.removal != &job.removal->removal || !job.running()) return;
  PHUB_CHECK(job.removal->cores_left > 0, "job={}", job.name());
  if (--job.removal->cores_left > 0) return;
  job.unlinking = nullptr;
  ForgetBetweenBuilds(job);
}

// The build of a group's batch has copies of the numbers in use.
void KeyRemovals::ForgetBetweenBuilds(Job& job) {
  if (job.key_build == nullptr) return Forget(job);
  Keys::AfterBuild(job, [this, &job, run = job.removal] {
    if (job.running() && job.removal == run) ForgetBetweenBuilds(job);
  });
}

// The job has the keys no more. Names and memory are freed without the lock; they are charged until
// then.
void KeyRemovals::Forget(Job& job) {
  RemovalRun& run = *job.removal;
  run.state = RemovalRun::State::kFreeing;
  run.key_count = job.keys.size() - run.removal.first_key;
  auto unwanted =
      std::make_shared<std::vector<std::shared_ptr<const void>>>(std::exchange(run.unwanted, {}));
  std::vector<std::shared_ptr<const KeyList>> lists;
  for (std::size_t i = run.first_batch; i < job.batches.size(); ++i) {
    BatchRecord& record = job.batches[i];
    run.bytes += record.bytes;
    job.parameter_bytes -= record.parameter_bytes;
    ReturnPlaces(job, record);
    TakeMemoryOf(record, *unwanted);
    lists.push_back(std::move(record.keys));
  }
  for (const std::uint64_t bytes : run.of_ranks) run.bytes += bytes;
  job.batches.resize(run.first_batch);
  job.batches_handed_out = run.first_batch;
  job.keys.RemoveBatchesFrom(run.first_batch);
  job.key_count = job.keys.size();
  for (Member& member : job.members) member.next_batch = run.first_batch;
  shares_.ShareOutAgain(job.account.tenant);
  run.memory_free = host_memory_.FreeLater(std::move(unwanted));
  for (JobObserver* each : jobs_.observers()) each->OnKeysRemoved(job);
  ++job.long_work;  // the record stays until the names are free
  context_.turns.RunLong(
      run.key_count, job.account.tenant,
      [names = job.key_names, lists = std::move(lists)]() mutable {
        for (const std::shared_ptr<const KeyList>& list : lists)
          for (const v1::KeySpec& key : *list) names->erase(key.name());
        lists.clear();
      },
      [this, &job, removal = job.removal] {
        --job.long_work;
        removal->names_free = true;
        Advance(job);
      });
}

void KeyRemovals::Finish(Job& job) {
  const std::shared_ptr<RemovalRun> run = std::exchange(job.removal, nullptr);
  context_.ledger.Return(job.account, run->bytes);
  context_.ledger.ReturnKeys(job.account, run->key_count);
  job.memory_bytes -= run->bytes;
  for (std::size_t rank = 0; rank < job.members.size(); ++rank)
    job.members[rank].memory.worker_bytes -= run->of_ranks[rank];
  host_memory_.left().Check();  // ranks may still map what they shared: charged to the tenant
  ++job.removals_done;
  context_.counters.Add(ControlCounter::key_removals);
  context_.counters.Add(ControlCounter::keys_removed, run->key_count);
  context_.log.Info(
      "event=keys_removed tenant={} job=\"{}\" first_batch={} keys={} memory_bytes={}",
      job.account.tenant, job.name(), run->first_batch, run->key_count, run->bytes);
  for (const Answer<v1::RemoveKeysResponse>& answer : run->answers) answer(absl::OkStatus(), {});
}

void KeyRemovals::Refuse(Job& job, const absl::Status& why) {
  const std::shared_ptr<RemovalRun> run = std::exchange(job.removal, nullptr);
  for (const Answer<v1::RemoveKeysResponse>& answer : run->answers)
    if (answer) answer(context_.Refuse(ControlCounter::key_removals_refused, why), {});
}

// Core loops refer to the run, and perhaps to the memory, until they have ended the job.
void KeyRemovals::OnOver(Job& job, const absl::Status& why) {
  PHUB_ON_CONTROL();
  const std::shared_ptr<RemovalRun> run = std::exchange(job.removal, nullptr);
  if (run == nullptr) return;
  job.unwanted.push_back(run);
  for (const Answer<v1::RemoveKeysResponse>& answer : std::exchange(run->answers, {}))
    if (answer) answer(why, {});
}

}  // namespace phub::server
