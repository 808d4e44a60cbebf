#include "server/core/loop/reports.h"

#include <algorithm>

#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/on_core_loop.h"
#include "server/core/shard_sums.h"

namespace phub::server {

namespace {

// Whether the chunk's round has left the queue and its result depends on other racks.
bool WaitsForRacks(const JobShard& shard, const Chunk& chunk) {
  return chunk.exchange != nullptr && shard.config.world_size > 0 && chunk.IsWhole() &&
         !chunk.is_queued && !chunk.is_summed;
}

// Whether the chunk's round waits for some rank:
//   - A whole round in the queue waits for its turn. It can be incomplete again after a lane was
//     lost.
//   - apply=iteration: when all chunks are summed, they wait for decisions. Before that, a chunk
//     without any push makes the summed chunks wait, unless its key is collective.
//   - Another rack asked for the round: it waits, even if no rank here has pushed it.
bool WaitsForRanks(const JobShard& shard, const Chunk& chunk, const StallReport& report) {
  const ShardIteration& iteration = shard.iteration;
  if (chunk.is_queued && chunk.IsWhole()) return false;
  if (chunk.is_summed) return iteration.summed_count == iteration.chunk_count;
  if (report.asked && report.asked->key == chunk.key->key &&
      report.asked->iteration.value == chunk.applied.value + 1) {
    return !chunk.IsWhole();
  }
  return HasBegun(shard, chunk) || (iteration.summed_count > 0 && !chunk.key->collective);
}

bool IsMissing(const JobShard& shard, const Chunk& chunk, Rank rank) {
  return chunk.is_summed ? !shard.lanes[rank.value].decided : !HasGradientOf(shard, chunk, rank);
}

TimeNs Since(const JobShard& shard, const Chunk& chunk) {
  const bool nobody_came = !HasBegun(shard, chunk);
  return chunk.is_summed || nobody_came ? shard.iteration.summed_since : chunk.round_since;
}

}  // namespace

void Reports::ReportStalls(JobShard& shard, StallReport& report) {
  PHUB_ON_CORE_LOOP();
  report.count = 0;
  report.dropped = 0;
  report.across.reset();
  report.values.reset();
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    if (report.record && !report.values && chunk.key->key == report.record->key) {
      report.values = chunk.key->ValuesOf(report.record->version);
    }
    const Iteration iteration{chunk.applied.value + 1};
    if (WaitsForRacks(shard, chunk)) {
      // Other racks are asked by the key's number, and those of groups' keys differ.
      if (chunk.members != nullptr) continue;
      if (!report.across || chunk.round_since < report.across->since) {
        report.across = {chunk.key->key, iteration, chunk.round_since};
      }
      continue;
    }
    if (!WaitsForRanks(shard, chunk, report)) continue;
    StallReport::Entry* entry = report.count > 0 ? &report.entries[report.count - 1] : nullptr;
    if (entry == nullptr || entry->key != chunk.key->key || entry->iteration != iteration) {
      if (report.count == report.entries.size()) {
        ++report.dropped;
        continue;
      }
      entry = &report.entries[report.count++];
      entry->key = chunk.key->key;
      entry->iteration = iteration;
      entry->since = Since(shard, chunk);
      entry->chunks_waiting = 0;
      entry->pooled = chunk.is_pooled() && HasBegun(shard, chunk);
      entry->pool_operation = chunk.pool.round.sequence & wire::kPoolSequenceMask;
      std::fill(entry->missing.begin(), entry->missing.end(), std::uint64_t{0});
    }
    ++entry->chunks_waiting;
    entry->since = std::min(entry->since, Since(shard, chunk));
    for (std::uint32_t member = 0; member < chunk.member_count; ++member) {
      const Rank rank = chunk.RankOf(member);
      if (IsMissing(shard, chunk, rank))
        entry->missing[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
    }
  }
  outbox_.Emit({.kind = Event::Kind::kStallsReported, .shard = &shard, .report = &report});
}

namespace {

// Adds a chunk to the report of its key.
void Include(const Chunk& chunk, VersionReport::Entry& entry) {
  const bool first = entry.chunk_count++ == 0;
  if (first || chunk.applied < entry.applied_min) {
    entry.applied_min = chunk.applied;
    entry.hyper_version = chunk.applied_hyper_version[chunk.applied.value % 2];
    entry.previous_hyper_version = chunk.applied_hyper_version[(chunk.applied.value + 1) % 2];
    entry.hyper_parameters = chunk.key->ValuesOf(entry.hyper_version);
    entry.previous_hyper_parameters = chunk.key->ValuesOf(entry.previous_hyper_version);
  }
  entry.applied_max = std::max(entry.applied_max, chunk.applied);
  entry.reductions_min =
      first ? chunk.reductions : std::min(entry.reductions_min, chunk.reductions);
  entry.reductions_max = std::max(entry.reductions_max, chunk.reductions);
}

}  // namespace

// For control: the chunks whose home is this rack, because only the home can save them. For a rank:
// all chunks, because the rank pushes and pulls all of them here. Collective keys are left out.
void Reports::ReportVersions(JobShard& shard, VersionReport& report, Rank asking) {
  PHUB_ON_CORE_LOOP();
  const bool all = asking != Rank::Max();
  std::fill(report.keys.begin(), report.keys.end(), VersionReport::Entry{});
  report.key_count = shard.key_count;
  for (std::size_t i = 0; i < report.keys.size() && report.first.value + i < shard.key_count; ++i) {
    const ShardKey& key = *shard.keys()[report.first.value + i];
    for (std::uint32_t n = 0; n < key.chunk_count; ++n) {
      const Chunk& chunk = *shard.chunks()[key.first_chunk.value + n];
      if (all ? !key.collective : chunk.IsSaved()) Include(chunk, report.keys[i]);
    }
  }
  outbox_.Emit({.kind = Event::Kind::kVersionsReported, .shard = &shard, .versions = &report});
}

void Reports::TakeSnapshot(JobShard& shard, CheckpointImage& image) {
  PHUB_ON_CORE_LOOP();
  if (!checkpoint::Begin(shard, image)) {
    outbox_.Emit({.kind = Event::Kind::kSnapshotTaken, .shard = &shard, .image = &image});
    return;
  }
  ++snapshot_count_;
  loop_.counters.Add(CoreCounter::snapshots);
  AnswerIfWhole(shard);  // the snapshot of a shard without chunks is complete at once
}

void Reports::AnswerIfWhole(JobShard& shard) {
  if (!checkpoint::Whole(shard)) return;
  outbox_.Emit({.kind = Event::Kind::kSnapshotTaken, .shard = &shard, .image = shard.snapshot});
  DropSnapshot(shard);
}

void Reports::DropSnapshot(JobShard& shard) {
  if (shard.snapshot == nullptr) return;
  shard.snapshot = nullptr;
  --snapshot_count_;
}

bool Reports::AdvanceSnapshots() {
  if (snapshot_count_ == 0) return false;
  bool copied = false;
  for (JobShard* const shard : loop_.shards) {
    if (shard->snapshot == nullptr) continue;
    copied |= checkpoint::Advance(*shard);
    AnswerIfWhole(*shard);
  }
  return copied;
}

}  // namespace phub::server
