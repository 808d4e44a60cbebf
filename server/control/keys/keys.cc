#include "server/control/keys/keys.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/keys/batch_layout.h"
#include "server/control/keys/key_specs.h"
#include "server/control/text.h"

namespace phub::server {

namespace {

// The memory of the batch on every core that needs pages. Its exchange parts are the last ones of
// the job.
std::vector<UnbackedMemory> UnbackedMemoryOf(const Job& job, const BatchRecord& record) {
  std::vector<UnbackedMemory> memory;
  const auto add = [&](const MappedMemory& each, const std::shared_ptr<const void>& owner) {
    if (each) memory.push_back({.data = each.data(), .bytes = each.bytes(), .owner = owner});
  };
  for (const std::shared_ptr<KeyBatch>& part : record.parts) {
    add(part->masters, part);
    add(part->state, part);
  }
  if (job.exchange != nullptr) {
    const auto& batches = job.exchange->batches;
    for (std::size_t i = batches.size() - record.parts.size(); i < batches.size(); ++i) {
      add(batches[i]->landing, batches[i]);
    }
  }
  const BatchParameters& parameters = record.parameters;
  for (const std::span<std::byte> own : parameters.own) {
    const bool shared = parameters.shared.bytes() > 0 && own.data() == parameters.shared.data();
    std::shared_ptr<const void> owner = parameters.ordinary;
    if (shared) owner = parameters.shared.shared();
    memory.push_back({.data = own.data(), .bytes = own.size(), .owner = std::move(owner)});
  }
  return memory;
}

}  // namespace

absl::Status Keys::CheckChunkCounts(const Job& job, const Placement& placement) const {
  std::vector<std::uint32_t> counts = job.chunk_counts;
  for (const std::vector<BinIndex>& key : placement) {
    for (const BinIndex bin : key) ++counts[bin.value];
  }
  const std::uint32_t most = *std::max_element(counts.begin(), counts.end());
  if (most <= kChunksPerShardMax) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "job {}: a core loop would own {} chunks of {} bytes; the limit is {} chunks; use a larger "
      "chunk_bytes",
      job.name(), most, job.settings.chunk_bytes, kChunksPerShardMax));
}

// Reserves memory for a batch, builds the part of every core, and maps the parameters.
absl::Status Keys::BuildParts(Job& job, const KeySpecs& keys, const Placement& placement,
                              BatchRecord& record) {
  if (absl::Status status = CheckChunkCounts(job, placement); !status.ok()) return status;
  const std::uint32_t versions = job.config.versions();
  auto parts = CutForCores(keys, placement, job.own_bins, job.settings.chunk_bytes,
                           static_cast<std::uint32_t>(job.keys.size()));
  // Workers map one version only, but a restarted rank reads the previous version: then nothing is
  // shared.
  record.layout =
      LayOutParameters(keys, parts, versions, host_memory_.shares_memory() && versions == 1);
  std::uint64_t bytes = record.layout.memory_bytes;
  for (const auto& part : parts) bytes += KeyBatchBytes(job.config, part);
  if (job.rack_run != nullptr) {
    for (std::size_t core = 0; core < parts.size(); ++core) {
      bytes += exchange::ExchangeBatchBytes(job.exchange->plan, parts[core],
                                            job.exchange->choosers[core]);
    }
  }
  if (absl::Status status = context_.ledger.Reserve(job.account, bytes); !status.ok())
    return status;
  const SilenceGuard guard(context_);
  absl::StatusOr<BatchParameters> parameters = MakeParameters(record.layout, versions, parts);
  absl::Status status = parameters.status();
  for (const auto& part : parts) {
    if (!status.ok()) break;
    record.parts.push_back(MakeKeyBatch(job.config, part));
    if (record.parts.back() == nullptr) status = absl::ResourceExhaustedError("out of memory");
  }
  if (status.ok() && job.rack_run != nullptr) status = BuildExchangeParts(job, parts, record);
  if (status.ok()) {
    record.parameters = *std::move(parameters);
    status = host_memory_.TakePagesOf(UnbackedMemoryOf(job, record), record.pages);
  }
  if (!status.ok()) {
    context_.ledger.Return(job.account, bytes);
    return absl::ResourceExhaustedError(
        fmt::format("job {}: phubd could not allocate the {} that these keys need: {}", job.name(),
                    FormatBytes(bytes), std::string(status.message())));
  }
  host_memory_.TellOfParameters(job, record);
  job.memory_bytes += bytes;
  for (const std::vector<BinIndex>& key : placement) {
    for (const BinIndex bin : key) ++job.chunk_counts[bin.value];
  }
  return absl::OkStatus();
}

// Allocates the landing memory for partial sums of other racks, on every core.
absl::Status Keys::BuildExchangeParts(Job& job, const std::vector<std::vector<KeyShardSpec>>& parts,
                                      BatchRecord& record) {
  JobExchange& exchange = *job.exchange;
  for (std::size_t core = 0; core < parts.size(); ++core) {
    std::shared_ptr<exchange::ExchangeBatch> batch =
        exchange::MakeExchangeBatch(*exchange.shards[core], parts[core], exchange.choosers[core]);
    if (batch == nullptr) return absl::ResourceExhaustedError("out of memory");
    exchange::AddExchange(*exchange.shards[core], *batch, *record.parts[core]);
    exchange.batches.push_back(std::move(batch));
  }
  return absl::OkStatus();
}

void Keys::DescribePlacement(const Job& job, const Placement& placement, BatchRecord& record) {
  record.first_key = static_cast<std::uint32_t>(job.keys.size());
  for (std::size_t i = 0; i < placement.size(); ++i) {
    v1::KeyPlacement& placed = *record.placements.add_placements();
    placed.set_key_index(record.first_key + static_cast<std::uint32_t>(i));
    for (const BinIndex bin : placement[i]) placed.add_chunk_bins(bin.value);
    const ParameterLayout::KeyPlace& place = record.layout.keys[i];
    if (place.shared) placed.set_shared_offset(place.offset);
  }
}

absl::Status Keys::AcceptBatch(Job& job, const KeySpecs& given, Rank rank) {
  if (absl::Status status = CheckKeys(job, given); !status.ok()) {
    return context_.Refuse(ControlCounter::keys_refused_invalid, status);
  }
  const KeySpecs keys = FillInDefaults(given);
  std::vector<std::uint64_t> key_bytes;
  for (const v1::KeySpec& key : keys) key_bytes.push_back(KeyBytes(key));
  std::vector<PlacementBin> bins = job.bins;
  const auto placement = PlaceKeys(bins, key_bytes, job.settings.chunk_bytes);
  if (absl::Status status = context_.ledger.AddKeys(job.account, placement.size()); !status.ok()) {
    return context_.Refuse(ControlCounter::keys_refused_quota, status);
  }
  BatchRecord record;
  if (absl::Status status = BuildParts(job, keys, placement, record); !status.ok()) {
    context_.ledger.ReturnKeys(job.account, placement.size());
    return context_.Refuse(ControlCounter::keys_refused_capacity, status);
  }
  job.bins = std::move(bins);
  record.first = rank;
  DescribePlacement(job, placement, record);
  for (const v1::KeySpec& key : keys) {
    job.parameter_bytes += KeyBytes(key);
    job.key_names.insert(key.name());
    job.keys.push_back(key);
    record.keys.push_back(key);
  }
  job.key_count = job.keys.size();
  context_.counters.Add(ControlCounter::key_batches);
  context_.counters.Add(ControlCounter::keys_added, placement.size());
  LogInfo(
      "event=keys_added tenant={} job=\"{}\" batch={} keys={} parameter_bytes={} shared_bytes={}",
      job.account.tenant, job.name(), job.batches.size(), placement.size(), job.parameter_bytes,
      record.layout.shared_bytes);
  job.batches.push_back(std::move(record));
  shares_.ShareOutAgain(job.account.tenant);
  HandOutBatches(job);
  return job.running() ? absl::OkStatus() : absl::AbortedError(job.fault.message());
}

// Sends a batch to the core loops only after its pages are prefaulted. From then on workers can
// push, even if their calls are not answered yet, and an allocation must not fail on a core loop.
void Keys::HandOutBatches(Job& job) {
  for (; job.batches_handed_out < job.batches.size(); ++job.batches_handed_out) {
    BatchRecord& next = job.batches[job.batches_handed_out];
    const PrefaultState pages = next.pages == nullptr ? PrefaultState::kTaken : next.pages->load();
    if (pages == PrefaultState::kWaiting) return;
    if (pages == PrefaultState::kRefused) {
      context_.counters.Add(ControlCounter::keys_refused_capacity);
      const std::string daemon =
          job.rack_run == nullptr
              ? "phubd"
              : context_.options.DescribeRack(RackIndex{context_.options.rack_index});
      return ending_.Fail(
          job, ending_.MakeFault(job, "out_of_memory",
                                 fmt::format("{} could not allocate memory for the keys; free "
                                             "memory on its host, or lower memory_max",
                                             daemon)));
    }
    for (std::size_t core = 0; core < context_.cores.size(); ++core) {
      next.tickets.push_back(context_.cores[core].Send({.kind = Command::Kind::kAddKeys,
                                                        .shard = job.shards[core].get(),
                                                        .batch = next.parts[core].get()}));
    }
  }
}

// Ranks with different keys can never complete a round, so the job fails. The message describes the
// difference.
void Keys::FailOverKeys(Job& job, Rank first, Rank rank, const std::string& difference) {
  context_.counters.Add(ControlCounter::keys_refused_mismatch);
  v1::Fault fault = ending_.MakeFault(
      job, "keys_mismatch",
      fmt::format("{} and {} added different keys: {}", DescribeRankBriefly(job, first),
                  DescribeRankBriefly(job, rank), difference));
  ending_.BlameRank(job, rank, fault);
  ending_.Fail(job, std::move(fault));
}

void Keys::AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer) {
  const auto refuse = [&](const absl::Status& status) { answer(status, {}); };
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request.session_id());
  if (!seat.ok()) return refuse(seat.status());
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  if (request.batch() > member.next_batch) {
    return refuse(
        context_.Refuse(ControlCounter::keys_refused_invalid,
                        absl::InvalidArgumentError(fmt::format(
                            "{} added batch {} of keys to job {}, but its next batch is {}",
                            DescribeRankBriefly(job, seat->rank), request.batch(), job.name(),
                            member.next_batch))));
  }
  if (request.batch() == job.batches.size()) {
    if (absl::Status status = peer_racks_.CheckKeys(job, request.keys()); !status.ok()) {
      return refuse(context_.Refuse(ControlCounter::keys_refused_invalid, status));
    }
    const absl::Status status = AcceptBatch(job, request.keys(), seat->rank);
    if (!status.ok()) return refuse(status);
    peer_racks_.TellOfKeys(job, request.batch());
  }
  PHUB_CHECK(request.batch() < job.batches.size(), "batch={} batches={}", request.batch(),
             job.batches.size());
  const BatchRecord& record = job.batches[request.batch()];
  const std::string difference =
      DifferenceInKeys(job, request.batch(), FillInDefaults(request.keys()), seat->rank);
  if (!difference.empty()) {
    FailOverKeys(job, record.first, seat->rank, difference);
    return refuse(absl::InvalidArgumentError(job.fault.message()));
  }
  const absl::Status shared =
      rank_memories_.ShareBatch(job, seat->rank, request.batch(), request.shared_bytes());
  if (!shared.ok()) return refuse(shared);
  if (request.batch() == member.next_batch) ++member.next_batch;
  job.pending.push_back({{},
                         [this, &job, rank = seat->rank, batch = request.batch(), answer] {
                           AnswerBatch(job, rank, batch, answer);
                         },
                         [answer](const absl::Status& status) { answer(status, {}); },
                         /*awaits_racks=*/job.rack_run != nullptr,
                         request.batch() + 1,
                         record.known,
                         member.memory.batches[request.batch()].worker_pages});
  pending_calls_.AnswerAcknowledged(job);
}

void Keys::AnswerBatch(Job& job, Rank rank, std::uint32_t batch,
                       const Answer<v1::AddKeysResponse>& answer) {
  v1::AddKeysResponse response = job.batches[batch].placements;
  rank_memories_.GrantBatch(job, job.members[rank.value], batch, response);
  answer(absl::OkStatus(), response);
}

}  // namespace phub::server
