#include "server/core/orders.h"

#include <algorithm>

#include "common/base/check.h"
#include "server/core/aggregate/lane_room.h"
#include "server/core/exchange/shard_exchange.h"
#include "server/core/rounds/departed.h"
#include "server/core/rounds/rounds.h"

namespace phub::server {

Orders::Orders(LoopContext& loop, SpscQueue<Command>& commands, Outbox& outbox, LoopLanes& lanes,
               Turns& turns, Reports& reports, KeyRemover& remover, SumSequencer& sums)
    : loop_(loop),
      commands_(commands),
      outbox_(outbox),
      lanes_(lanes),
      turns_(turns),
      reports_(reports),
      remover_(remover),
      sums_(sums) {}

bool Orders::Execute() {
  Command command;
  std::size_t count = 0;
  while (count < kCommandsPerRun && commands_.TryPop(command)) {
    Execute(command);
    ++count;
    auto& done = loop_.counters.commands_done;
    done.store(done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  return count > 0;
}

void Orders::Execute(const Command& command) {
  PHUB_CHECK(command.shard != nullptr, "command kind={}", static_cast<int>(command.kind));
  JobShard& shard = *command.shard;
  switch (command.kind) {
    case Command::Kind::kAddJob: return AddJob(shard);
    case Command::Kind::kAddKeys: return AddKeys(shard, *command.batch);
    case Command::Kind::kRemoveKeys: return remover_.Begin(shard, *command.removal);
    case Command::Kind::kAttachLane: return lanes_.Attach(command);
    case Command::Kind::kRankLeft: return departed::OnRankLeft(outbox_, shard, command.rank);
    case Command::Kind::kReportStalls: return reports_.ReportStalls(shard, *command.report);
    case Command::Kind::kReportVersions:
      return reports_.ReportVersions(shard, *command.versions, command.rank);
    case Command::Kind::kTakeSnapshot: return reports_.TakeSnapshot(shard, *command.image);
    case Command::Kind::kDropSnapshot: return reports_.DropSnapshot(shard);
    case Command::Kind::kLoadCheckpoint: shard.loaded = command.image; return;
    case Command::Kind::kTraceRounds: shard.trace = command.trace; return;
    case Command::Kind::kSetShare: return turns_.SetShare(shard, command.share);
    case Command::Kind::kOpenStream: return sums_.Open(shard, *command.lease);
    case Command::Kind::kCloseStream: return sums_.Close(shard);
    case Command::Kind::kEndJob: return EndJob(shard);
    case Command::Kind::kNone: break;
  }
  PHUB_CHECK(false, "command kind={}", static_cast<int>(command.kind));
}

void Orders::AddJob(JobShard& shard) {
  PHUB_CHECK(loop_.shards.size() < kShardsMax);
  shard.round_policy = Rounds::PolicyFor(shard);
  shard.long_work = loop_.long_work;
  if (shard.exchange != nullptr) {
    shard.memory = &shard.exchange->metrics.memory;
    shard.memory->SetCounters(loop_.counters);
  }
  loop_.shards.push_back(&shard);
  turns_.AddJob(shard);
}

void Orders::AddKeys(JobShard& shard, KeyBatch& batch) {
  // While a removal drains, keys of other groups come, whose numbers are not those of its keys; and
  // keys of the whole job, unless it removes some of these.
  const bool is_of_job = !batch.keys.empty() && batch.keys[0].members == nullptr;
  PHUB_CHECK(shard.removal == nullptr || shard.removal->group != nullptr || !is_of_job ||
             !shard.live());
  for (ShardKey& key : batch.keys) AddKey(shard, key);
  for (Chunk& chunk : batch.chunks) {
    ShardKey& key = *chunk.key;
    if (key.chunk_count == 0 && !key.chunks_numbered)
      key.first_chunk = ChunkIndex{shard.chunk_count};
    chunk.index = ChunkIndex{key.first_chunk.value + key.chunk_count++};
    PHUB_CHECK(chunk.index.value < kChunksPerShardMax, "chunk={}", chunk.index.value);
    while (shard.chunk_count <= chunk.index.value)
      shard.chunks()[shard.chunk_count++] = shard.no_chunk.get();
    Chunk*& place = shard.chunks()[chunk.index.value];
    PHUB_CHECK(shard.IsHole(*place), "chunk={} key={}", chunk.index.value, key.key.value);
    place = &chunk;
    AddStreamChunk(shard, chunk);
    loop_.relief_due |= aggregate::NoteChunkAdded(shard, key.level);
    if (!key.collective) ++shard.iteration.chunk_count;
  }
  turns_.AddKeys(shard, batch);
  if (batch.exchange != nullptr) exchange::LinkBatch(shard, *batch.exchange, loop_.transports);
  LoopLanes::LimitUnsent(shard);
}

void Orders::AddKey(JobShard& shard, ShardKey& key) {
  if (key.members == nullptr) {
    PHUB_CHECK(key.key.value == shard.key_count && shard.key_count < kKeysPerJobMax,
               "key={} expected={}", key.key.value, shard.key_count);
    shard.keys()[shard.key_count++] = &key;
    return;
  }
  const std::uint32_t number = key.key.value - kGroupKeysFirst;
  PHUB_CHECK(key.collective && number < kKeysPerJobMax, "key={}", key.key.value);
  shard.group_key_end = std::max(shard.group_key_end, number + 1);
  ShardKey*& place = shard.keys()[key.key.value];
  PHUB_CHECK(place == nullptr, "key={}", key.key.value);
  place = &key;
}

void Orders::EndJob(JobShard& shard) {
  PHUB_CHECK(!shard.ending);
  shard.ending = true;
  reports_.DropSnapshot(shard);
  remover_.Drop(shard);
  some_shard_ends_ = true;
  lanes_.CloseAll(shard);
}

void Orders::RetireEndedShards() {
  if (!some_shard_ends_) return;
  some_shard_ends_ = false;
  for (std::size_t i = 0; i < loop_.shards.size();) {
    JobShard* const shard = loop_.shards[i];
    if (!shard->ending || shard->lanes_open > 0) {
      some_shard_ends_ |= shard->ending;
      ++i;
      continue;
    }
    turns_.RemoveJob(*shard);
    loop_.shards[i] = loop_.shards.back();
    loop_.shards.pop_back();
    outbox_.Emit({.kind = Event::Kind::kJobEnded, .shard = shard});
  }
}

}  // namespace phub::server
