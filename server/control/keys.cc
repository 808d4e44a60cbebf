#include <algorithm>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/key_specs.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {

// A job's chunks are spread evenly over all cores by themselves, whatever other jobs do: each job
// is as fast as it can be, and its placement depends on its keys alone. What other jobs hold only
// settles ties, so that many small jobs do not all lie on the first core.
void Control::State::ChooseBins(Job& job) {
  if (!job.bins.empty()) return;
  for (std::size_t core = 0; core < links.size(); ++core) job.bins.push_back({CoreAt(core), 0});
  std::stable_sort(job.bins.begin(), job.bins.end(),
                   [&](const PlacementBin& a, const PlacementBin& b) {
                     return core_loads[a.core.value] < core_loads[b.core.value];
                   });
}

// Reserves and builds every core's part of a batch.
absl::Status Control::State::BuildParts(Job& job, const v1::AddKeysRequest& request,
                                        const std::vector<std::vector<CoreIndex>>& placement,
                                        BatchRecord& record) {
  const auto parts = CutForCores(job, request.keys(), placement, links.size());
  std::uint64_t bytes = 0;
  for (std::size_t core = 0; core < links.size(); ++core) {
    std::uint64_t chunks = job.chunk_counts[core];
    for (const KeyShardSpec& key : parts[core]) chunks += key.chunk_elements.size();
    if (chunks > kChunksPerShardMax) {
      return absl::InvalidArgumentError(fmt::format(
          "job {}: core {} would own {} chunks of {} bytes, over the limit of {}; use a larger "
          "chunk_bytes",
          job.name(), core, chunks, job.settings.chunk_bytes, kChunksPerShardMax));
    }
    bytes += KeyBatchBytes(job.config, parts[core]);
  }
  if (absl::Status status = ledger.Reserve(job.account, bytes); !status.ok()) return status;
  const SilenceGuard guard(*this);
  for (std::size_t core = 0; core < links.size(); ++core) {
    record.parts.push_back(MakeKeyBatch(job.config, parts[core]));
    if (record.parts.back() != nullptr) continue;
    ledger.Return(job.account, bytes);
    return absl::ResourceExhaustedError(
        fmt::format("job {}: the system does not give phubd the {} that these keys need",
                    job.name(), FormatBytes(bytes)));
  }
  job.memory_bytes += bytes;
  for (std::size_t core = 0; core < links.size(); ++core) {
    job.chunk_counts[core] += static_cast<std::uint32_t>(record.parts[core]->chunks.size());
  }
  return absl::OkStatus();
}

// The first rank to send a batch: checks, places and builds it, and tells the core loops.
absl::Status Control::State::AcceptBatch(Job& job, const v1::AddKeysRequest& request, Rank rank) {
  if (absl::Status status = CheckKeys(job, request.keys(), links.size()); !status.ok()) {
    return Refuse(ControlCounter::keys_refused_invalid, status);
  }
  ChooseBins(job);
  std::vector<std::uint64_t> key_bytes;
  for (const v1::KeySpec& key : request.keys()) key_bytes.push_back(KeyBytes(key));
  std::vector<PlacementBin> bins = job.bins;
  const auto placement = PlaceKeys(bins, key_bytes, job.settings.chunk_bytes);
  BatchRecord record;
  if (absl::Status status = BuildParts(job, request, placement, record); !status.ok()) {
    return Refuse(ControlCounter::keys_refused_capacity, status);
  }
  for (std::size_t i = 0; i < bins.size(); ++i) {
    core_loads[bins[i].core.value] += bins[i].load_bytes - job.bins[i].load_bytes;
  }
  job.bins = std::move(bins);
  record.first = rank;
  record.first_key = static_cast<std::uint32_t>(job.keys.size());
  for (std::size_t i = 0; i < placement.size(); ++i) {
    const v1::KeySpec& key = request.keys(static_cast<int>(i));
    v1::KeyPlacement& placed = *record.placements.add_placements();
    placed.set_key_index(record.first_key + static_cast<std::uint32_t>(i));
    for (const CoreIndex core : placement[i]) placed.add_chunk_cores(core.value);
    job.parameter_bytes += key_bytes[i];
    job.key_names.insert(key.name());
    job.keys.push_back(key);
    record.keys.push_back(key);
  }
  job.key_count = job.keys.size();
  for (std::size_t core = 0; core < links.size(); ++core) {
    record.tickets.push_back(links[core].Send({.kind = Command::Kind::kAddKeys,
                                               .shard = job.shards[core].get(),
                                               .batch = record.parts[core].get()}));
  }
  counters.Add(ControlCounter::key_batches);
  counters.Add(ControlCounter::keys_added, placement.size());
  LogInfo("event=keys_added tenant={} job=\"{}\" batch={} keys={} parameter_bytes={}",
          job.account.tenant, job.name(), job.batches.size(), placement.size(),
          job.parameter_bytes);
  job.batches.push_back(std::move(record));
  return absl::OkStatus();
}

// Ranks that disagree can never meet in a round, so the job ends, with the difference in the text.
void Control::State::FailOverKeys(Job& job, Rank first, Rank rank, const std::string& difference) {
  counters.Add(ControlCounter::keys_refused_mismatch);
  v1::Fault fault =
      MakeFault(job, "keys_mismatch",
                fmt::format("{} and {} disagree on its keys: {}", DescribeRankBriefly(job, first),
                            DescribeRankBriefly(job, rank), difference));
  BlameRank(job, rank, fault);
  Fail(job, std::move(fault));
}

void Control::State::AddKeys(const v1::AddKeysRequest& request,
                             Answer<v1::AddKeysResponse> answer) {
  const auto refuse = [&](const absl::Status& status) { answer(status, {}); };
  const absl::StatusOr<Seating> seat = FindRunning(request.session_id());
  if (!seat.ok()) return refuse(seat.status());
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  if (request.batch() > member.next_batch) {
    return refuse(Refuse(ControlCounter::keys_refused_invalid,
                         absl::InvalidArgumentError(
                             fmt::format("{} sends batch {} of keys to job {}, its next is {}",
                                         DescribeRankBriefly(job, seat->rank), request.batch(),
                                         job.name(), member.next_batch))));
  }
  if (request.batch() == job.batches.size()) {
    const absl::Status status = AcceptBatch(job, request, seat->rank);
    if (!status.ok()) return refuse(status);
  }
  PHUB_CHECK(request.batch() < job.batches.size(), "batch={} batches={}", request.batch(),
             job.batches.size());
  const BatchRecord& record = job.batches[request.batch()];
  const std::string difference = DifferenceInKeys(job, request.batch(), request.keys(), seat->rank);
  if (!difference.empty()) {
    FailOverKeys(job, record.first, seat->rank, difference);
    return refuse(absl::InvalidArgumentError(job.fault.message()));
  }
  if (request.batch() == member.next_batch) ++member.next_batch;
  job.pending.push_back({record.tickets,
                         [&job, batch = request.batch(), answer] {
                           answer(absl::OkStatus(), job.batches[batch].placements);
                         },
                         [answer](const absl::Status& status) { answer(status, {}); }});
  AnswerAcknowledged(job);
}

}  // namespace phub::server
