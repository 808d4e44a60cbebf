#include "server/control/keys/keys.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/grant_needs.h"
#include "server/control/keys/batch_layout.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_specs.h"
#include "server/control/keys/key_text.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {

namespace {

// The memory of the batch on every core that needs pages.
std::vector<UnbackedMemory> UnbackedMemoryOf(const KeyBuild& build) {
  const BatchRecord& record = build.record;
  std::vector<UnbackedMemory> memory;
  const auto add = [&](const MappedMemory& each, const std::shared_ptr<const void>& owner) {
    if (each) memory.push_back({.data = each.data(), .bytes = each.bytes(), .owner = owner});
  };
  for (const std::shared_ptr<KeyBatch>& part : record.parts) {
    add(part->masters, part);
    add(part->state, part);
  }
  for (const auto& batch : build.exchange_batches) add(batch->landing, batch);
  const BatchParameters& parameters = record.parameters;
  for (const std::span<std::byte> own : parameters.own) {
    const bool shared = parameters.shared.bytes() > 0 && own.data() == parameters.shared.data();
    std::shared_ptr<const void> owner = parameters.ordinary;
    if (shared) owner = parameters.shared.shared();
    memory.push_back({.data = own.data(), .bytes = own.size(), .owner = std::move(owner)});
  }
  return memory;
}

void KeepChunks(KeyBuild& build) {
  for (const std::vector<NumberRange>& key : build.numbers)
    build.record.chunks.insert(build.record.chunks.end(), key.begin(), key.end());
}

// The job has the places and numbers of the batch's chunks. The record keeps what its removal
// returns.
void TakePlaces(Job& job, KeyBuild& build) {
  BatchRecord& record = build.record;
  if (build.group != nullptr && build.group->exchange != nullptr) {
    build.group->exchange->bins = std::move(build.bins);
    build.group->exchange->choosers = std::move(build.choosers);
    record.loads.assign(job.bins.size(), 0);  // its loads are the group's own
    KeepChunks(build);
    return job.chunk_numbers.swap(build.chunk_numbers);
  }
  const bool apart = build.group != nullptr && !job.group_loads.empty();
  std::vector<std::uint64_t> loads;
  for (std::size_t i = 0; i < job.bins.size(); ++i) {
    const std::uint64_t of_groups = apart ? job.group_loads[i] : 0;
    loads.push_back(build.bins[i].load_bytes - job.bins[i].load_bytes - of_groups);
    if (apart) job.group_loads[i] += loads[i];
  }
  if (!apart) job.bins.swap(build.bins);
  job.chunk_numbers.swap(build.chunk_numbers);
  if (!std::ranges::all_of(*record.keys, &v1::KeySpec::collective)) return;
  record.loads = std::move(loads);
  KeepChunks(build);
}

}  // namespace

// Reserves what the batch needs.
absl::Status Keys::Admit(Job& job, KeyBuild& build) {
  build.refusal = ControlCounter::keys_refused_quota;
  if (absl::Status status =
          context_.ledger.AddKeys(job.account, build.placement.size(), build.only_here);
      !status.ok()) {
    return status;
  }
  build.refusal = ControlCounter::keys_refused_capacity;
  absl::Status status = context_.ledger.Reserve(job.account, build.bytes);
  if (status.ok()) {
    job.memory_bytes += build.bytes;
  } else {
    context_.ledger.ReturnKeys(job.account, build.placement.size(), build.only_here);
  }
  return status;
}

// The batch is built: the job has it from now on. If it cannot, returns what was reserved.
absl::Status Keys::Enter(Job& job, KeyBuild& build) {
  BatchRecord& record = build.record;
  absl::Status status = build.status;
  if (status.ok()) status = host_memory_.TakePagesOf(UnbackedMemoryOf(build), record.pages);
  if (!status.ok()) {
    context_.ledger.Return(job.account, build.bytes);
    job.memory_bytes -= build.bytes;
    context_.ledger.ReturnKeys(job.account, build.placement.size(), build.only_here);
    if (record.keys != nullptr) {  // a retry may use the names
      for (const v1::KeySpec& key : *record.keys) build.names->erase(key.name());
    }
    build.refusal = ControlCounter::keys_refused_capacity;
    return absl::ResourceExhaustedError(
        fmt::format("job {}: phubd could not allocate the {} that these keys need: {}", job.name(),
                    FormatBytes(build.bytes), std::string(status.message())));
  }
  host_memory_.TellOfParameters(job, record);
  if (job.exchange != nullptr) {
    if (build.group == nullptr) job.exchange->choosers = std::move(build.choosers);
    auto& kept = build.group == nullptr ? job.exchange->batches : record.exchange_parts;
    for (auto& batch : build.exchange_batches) kept.push_back(std::move(batch));
  }
  record.held = build.held;
  record.only_here = build.only_here;
  record.bytes = build.bytes;
  record.parameter_bytes = build.parameter_bytes;
  job.parameter_bytes += build.parameter_bytes;
  TakePlaces(job, build);
  context_.counters.Add(ControlCounter::key_batches);
  context_.counters.Add(ControlCounter::keys_added, record.keys->size());
  const std::size_t batch =
      build.group == nullptr ? job.batches.size() : build.group->batches.size();
  context_.log.Info(
      "event=keys_added tenant={} job=\"{}\" group=\"{}\" batch={} keys={} parameter_bytes={} "
      "shared_bytes={}",
      job.account.tenant, job.name(), build.group == nullptr ? "" : build.group->name, batch,
      record.keys->size(), job.parameter_bytes, record.layout.shared_bytes);
  if (build.group != nullptr) {
    groups_.Enter(job, build);
  } else {
    job.keys.Add(record.keys, build.first_iterations);
    job.key_count = job.keys.size();
    job.batches.push_back(std::move(record));
  }
  shares_.ShareOutAgain(job.account.tenant);
  HandOutBatches(job);
  return job.running() ? absl::OkStatus() : absl::AbortedError(job.fault.message());
}

void Keys::AfterBuild(Job& job, std::function<void()> then) {
  job.key_waiters.push_back(std::move(then));
}

void Keys::BuildPeerBatch(Job& job, std::shared_ptr<const KeySpecs> given, Rank rank, Done done) {
  PHUB_ON_CONTROL();
  const std::shared_ptr<KeyBuild> build = StartKeyBuild(job, rank, host_memory_);
  build->given = std::move(given);
  StartBuild(job, build, done);
}

// Sends a batch to the core loops only after its pages are prefaulted. From then on workers can
// push, even if their calls are not answered yet, and an allocation must not fail on a core loop.
void Keys::HandOutBatches(Job& job) {
  PHUB_ON_CONTROL();
  for (; job.batches_handed_out < job.batches.size(); ++job.batches_handed_out) {
    BatchRecord& next = job.batches[job.batches_handed_out];
    const PrefaultState pages = next.pages == nullptr ? PrefaultState::kTaken : next.pages->load();
    if (pages == PrefaultState::kWaiting) return;
    if (pages == PrefaultState::kRefused) return FailWithoutMemory(job);
    SendBatch(job, next);
  }
  for (const std::shared_ptr<Group>& group : job.groups) {
    for (const std::shared_ptr<BatchRecord>& batch : group->batches) {
      if (!batch->tickets.empty() || batch->held) continue;
      const PrefaultState pages =
          batch->pages == nullptr ? PrefaultState::kTaken : batch->pages->load();
      if (pages == PrefaultState::kRefused) return FailWithoutMemory(job);
      if (pages == PrefaultState::kTaken) SendBatch(job, *batch);
    }
  }
}

void Keys::SendBatch(Job& job, BatchRecord& batch) {
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    batch.tickets.push_back(context_.cores[core].Send({.kind = Command::Kind::kAddKeys,
                                                       .shard = job.shards[core].get(),
                                                       .batch = batch.parts[core].get()}));
  }
}

void Keys::FailWithoutMemory(Job& job) {
  context_.counters.Add(ControlCounter::keys_refused_capacity);
  const std::string daemon =
      job.rack_run == nullptr
          ? "phubd"
          : context_.options.DescribeRack(RackIndex{context_.options.rack_index});
  ending_.Fail(job, ending_.MakeFault(job, "out_of_memory",
                                      fmt::format("{} could not allocate memory for the keys; free "
                                                  "memory on its host, or lower memory_max",
                                                  daemon)));
}

void Keys::AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer) {
  AddOwnedKeys(std::make_shared<const v1::AddKeysRequest>(request), std::move(answer));
}

void Keys::AddOwnedKeys(std::shared_ptr<const v1::AddKeysRequest> owned,
                        Answer<v1::AddKeysResponse> answer) {
  PHUB_ON_CONTROL();
  if (owned->has_group()) return groups_.AddKeys(std::move(owned), std::move(answer));
  const Adding adding{owned->session_id(),
                      owned->batch(),
                      owned->shared_bytes(),
                      owned->removals(),
                      static_cast<std::size_t>(owned->keys_size()),
                      std::move(answer)};
  BeginAdding(adding, std::move(owned));
}

void Keys::BeginAdding(const Adding& adding, Request request) {
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.session_id);
  if (!seat.ok()) return adding.answer(seat.status(), {});
  Job& job = *seat->job;
  const Member& member = job.members[seat->rank.value];
  if (absl::Status place = CheckPlace(job, seat->rank, adding); !place.ok())
    return adding.answer(context_.Refuse(ControlCounter::keys_refused_invalid, place), {});
  if (adding.batch > member.next_batch) {
    return adding.answer(
        context_.Refuse(ControlCounter::keys_refused_invalid,
                        absl::InvalidArgumentError(fmt::format(
                            "{} added batch {} of keys to job {}, but its next batch is {}",
                            DescribeRankBriefly(job, seat->rank), adding.batch, job.name(),
                            member.next_batch))),
        {});
  }
  if (adding.batch < job.batches.size()) return CompareBatch(job, adding, std::move(request));
  if (job.key_build != nullptr) {
    return AfterBuild(job, [this, adding, request] { BeginAdding(adding, request); });
  }
  if (job.removal != nullptr) return DisagreeWithRemoval(job, seat->rank, adding, *request);
  const std::shared_ptr<KeyBuild> build = StartKeyBuild(job, seat->rank, host_memory_);
  const KeySpecs& keys = request->keys();
  build->given = std::shared_ptr<const KeySpecs>(std::move(request), &keys);
  build->message_bytes_max = peer_racks_.KeysBytesMax(job);
  StartBuild(job, build, [this, adding](const absl::Status& status) {
    if (!status.ok()) return adding.answer(status, {});
    ShareBatch(adding);
  });
}

// The numbers of removed batches are used again. A call that was made before a removal, and arrives
// or continues after it, must not touch the batch that has its number now.
absl::Status Keys::CheckPlace(const Job& job, Rank rank, const Adding& adding) {
  if (adding.removals != job.removals_done) {
    return absl::FailedPreconditionError(fmt::format(
        "{} called AddKeys of job {} after {} calls of RemoveKeys, but the job has completed {}",
        DescribeRankBriefly(job, rank), job.name(), adding.removals, job.removals_done));
  }
  if (job.removal == nullptr || job.removal->state == RemovalRun::State::kGathering)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} called AddKeys of job {} while it removes keys on every rank",
                  DescribeRankBriefly(job, rank), job.name()));
}

// A rank adds new keys where another one waits in RemoveKeys: it would wait forever.
void Keys::DisagreeWithRemoval(Job& job, Rank rank, const Adding& adding,
                               const v1::AddKeysRequest& request) {
  const RemovalRun& removal = *job.removal;
  if (removal.answers[rank.value]) {
    return adding.answer(
        context_.Refuse(ControlCounter::keys_refused_invalid,
                        absl::FailedPreconditionError(
                            fmt::format("{} of job {} called AddKeys while its RemoveKeys waits",
                                        DescribeRankBriefly(job, rank), job.name()))),
        {});
  }
  const std::string added = request.keys().empty() ? "no keys" : DescribeKeys(request.keys());
  ending_.FailOverKeys(job, rank,
                       fmt::format("{} called RemoveKeys of {} where {} called AddKeys of {}",
                                   DescribeRankBriefly(job, removal.first),
                                   DescribeBatches(job, removal.first_batch, removal.first),
                                   DescribeRankBriefly(job, rank), added));
  adding.answer(absl::InvalidArgumentError(job.fault.message()), {});
}

// A rank adds a batch that another rank, or its own earlier call, has defined.
void Keys::CompareBatch(Job& job, const Adding& adding, Request request) {
  const auto difference = std::make_shared<KeyDifference>();
  context_.turns.RunLong(
      adding.key_count, job.account.tenant,
      [difference, first = job.batches[adding.batch].keys, request = std::move(request)]() mutable {
        *difference = CompareKeys(*first, FillInDefaults(request->keys()));
        request.reset();
      },
      [this, difference, adding] {
        const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.session_id);
        if (!seat.ok()) return adding.answer(seat.status(), {});
        if (!difference->found) return ShareBatch(adding);
        Job& found = *seat->job;
        if (absl::Status place = CheckPlace(found, seat->rank, adding); !place.ok())
          return adding.answer(place, {});
        const std::uint32_t batch = adding.batch;
        ending_.FailOverKeys(
            found, seat->rank,
            fmt::format("{} and {} disagree on the keys they added: {}",
                        DescribeRankBriefly(found, found.batches[batch].first),
                        DescribeRankBriefly(found, seat->rank),
                        Describe(*difference, found, found.batches[batch], batch, seat->rank)));
        adding.answer(absl::InvalidArgumentError(found.fault.message()), {});
      });
}

// The rank has the same keys as the job: shares memory with it, and answers once everything that
// the batch needs is in place.
void Keys::ShareBatch(const Adding& adding) {
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.session_id);
  if (!seat.ok()) return adding.answer(seat.status(), {});
  Job& job = *seat->job;
  if (absl::Status place = CheckPlace(job, seat->rank, adding); !place.ok())
    return adding.answer(place, {});
  Member& member = job.members[seat->rank.value];
  const std::uint32_t batch = adding.batch;
  PHUB_CHECK(batch < job.batches.size(), "batch={} batches={}", batch, job.batches.size());
  const Usage more = {.memory_bytes = adding.shared_bytes};
  if (!adding.covered && !context_.ledger.GrantCovers(job.account.tenant, more)) {
    const auto then = [this, adding, name = job.name()](const absl::Status& covered) {
      Adding again = adding;
      again.covered = true;
      if (covered.ok()) return ShareBatch(again);
      adding.answer(context_.Refuse(ControlCounter::keys_refused_quota, OfJob(name, covered)), {});
    };
    return context_.Cover(job.account.tenant, more, then);
  }
  const absl::Status shared =
      rank_memories_.ShareBatch(job, seat->rank, batch, adding.shared_bytes);
  if (!shared.ok()) return adding.answer(shared, {});
  if (batch == member.next_batch) ++member.next_batch;
  job.pending.push_back(
      {{},
       [this, adding] { AnswerBatch(adding); },
       [answer = adding.answer](const absl::Status& status) { answer(status, {}); },
       /*awaits_racks=*/job.rack_run != nullptr,
       batch + 1,
       job.batches[batch].known,
       member.memory.batches[batch].worker_pages});
  pending_calls_.AnswerAcknowledged(job);
}

void Keys::AnswerBatch(const Adding& adding) {
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.session_id);
  if (!seat.ok()) return adding.answer(seat.status(), {});
  if (absl::Status place = CheckPlace(*seat->job, seat->rank, adding); !place.ok())
    return adding.answer(place, {});
  const auto response = std::make_shared<v1::AddKeysResponse>();
  context_.turns.RunLong(
      seat->job->batches[adding.batch].units, seat->job->account.tenant,
      [response, placements = seat->job->batches[adding.batch].placements] {
        *response = *placements;
      },
      [this, adding, response] {
        const absl::StatusOr<Seating> still = sessions_.FindCommitted(adding.session_id);
        if (!still.ok()) return adding.answer(still.status(), {});
        if (absl::Status place = CheckPlace(*still->job, still->rank, adding); !place.ok())
          return adding.answer(place, {});
        rank_memories_.GrantBatch(*still->job, still->job->members[still->rank.value], adding.batch,
                                  *response);
        adding.answer(absl::OkStatus(), std::move(*response));
      });
}

}  // namespace phub::server
