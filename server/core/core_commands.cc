// What control orders a core loop to do. Cold: jobs, keys and lanes come and go here.
#include <algorithm>
#include <span>

#include "server/core/core_loop_state.h"

namespace phub::server {

bool CoreLoop::State::ExecuteCommands() {
  Command command;
  std::size_t count = 0;
  while (count < kCommandsPerRun && queues.commands.TryPop(command)) {
    Execute(command);
    ++count;
    counters.commands_done.store(counters.commands_done.load(std::memory_order_relaxed) + 1,
                                 std::memory_order_release);
  }
  return count > 0;
}

void CoreLoop::State::Execute(const Command& command) {
  JobShard& shard = *command.shard;
  switch (command.kind) {
    case Command::Kind::kAddJob: return AddJob(shard);
    case Command::Kind::kAddKeys: return AddKeys(shard, *command.batch);
    case Command::Kind::kAttachLane: return AttachLane(command);
    case Command::Kind::kRankLeft: return OnRankLeft(shard, command.rank);
    case Command::Kind::kReportStalls: return ReportStalls(shard, *command.report);
    case Command::Kind::kReportVersions:
      return ReportVersions(shard, *command.versions, command.rank);
    case Command::Kind::kTakeSnapshot: return TakeSnapshot(shard, *command.image);
    case Command::Kind::kDropSnapshot: return DropSnapshot(shard);
    case Command::Kind::kBringState: shard.brought = command.image; return;
    case Command::Kind::kSetShare: return fair.SetShare(shard, command.share, now);
    case Command::Kind::kEndJob: return EndJob(shard);
    case Command::Kind::kNone: break;
  }
  PHUB_CHECK(false, "command kind={}", static_cast<int>(command.kind));
}

void CoreLoop::State::AddJob(JobShard& shard) {
  PHUB_CHECK(shards.size() < kShardsMax);
  shards.push_back(&shard);
  fair.AddJob(shard, now);
}

void CoreLoop::State::AddKeys(JobShard& shard, KeyBatch& batch) {
  PHUB_CHECK(shard.key_count + batch.keys.size() <= kKeysPerJobMax);
  PHUB_CHECK(shard.chunk_count + batch.chunks.size() <= kChunksPerShardMax);
  for (KeyState& key : batch.keys) {
    PHUB_CHECK(key.key.value == shard.key_count, "key={} expected={}", key.key.value,
               shard.key_count);
    shard.keys()[shard.key_count++] = &key;
  }
  for (Chunk& chunk : batch.chunks) {
    chunk.index = ChunkIndex{shard.chunk_count};
    shard.chunks()[shard.chunk_count++] = &chunk;
  }
  fair.AddKeys(shard, batch);
  if (batch.exchange != nullptr) exchange::LinkBatch(shard, *batch.exchange, transports);
}

// None: it is not wanted, the job is over, or the transport's table is full; control is told.
transport::ConnectionId CoreLoop::State::Adopt(const Command& command, bool wanted,
                                               std::span<const transport::LandingSlot> landing) {
  JobShard& shard = *command.shard;
  transport::ConnectionId id;
  if (wanted && shard.live()) {
    id = transports[command.transport_index]->Adopt(*command.connection, landing);
  }
  if (id == transport::ConnectionId{}) {
    Emit({.kind = Event::Kind::kLaneClosed,
          .error = transport::TransportError::kLocalClosed,
          .rank = command.rank,
          .shard = &shard,
          .connection = command.connection});
    return id;
  }
  lane_tables[command.transport_index].Insert(id, {&shard, command.rank, command.connection, true});
  ++shard.lanes_open;
  counters.Add(CoreCounter::lanes_attached);
  return id;
}

void CoreLoop::State::AttachLane(const Command& command) {
  if (command.rank.value >= kPeerRankBase) return AttachPeer(command);
  JobShard& shard = *command.shard;
  Lane& lane = shard.lanes[command.rank.value];
  if (lane.state == Lane::State::kOpen) {  // the rank came back before its old lane was seen lost
    const transport::ConnectionId old = lane.connection;
    lane_tables[lane.transport_index].Replace(old);
    transports[lane.transport_index]->Close(old);
    LoseLane(shard, command.rank);
  }
  if (shard.live()) {
    PHUB_CHECK(command.staging != nullptr);
    const std::uint32_t slot_bytes = shard.config.chunk_bytes;
    const std::uint32_t before = command.connection->slot_header_bytes();
    for (std::size_t slot = 0; slot < lane.landing.size(); ++slot) {
      lane.landing[slot] = {command.staging + slot * (before + slot_bytes) + before, slot_bytes};
    }
  }
  const transport::ConnectionId id = Adopt(command, true, lane.landing);
  if (id == transport::ConnectionId{}) return;
  lane.state = Lane::State::kOpen;
  lane.transport_index = command.transport_index;
  lane.connection = id;
  if (shard.turn.held) transports[command.transport_index]->Hold(id, true);
}

void CoreLoop::State::OnRankLeft(JobShard& shard, Rank rank) {
  Lane& lane = shard.lanes[rank.value];
  if (lane.departed) return;
  lane.departed = true;
  ++shard.departed_count;
  if (!shard.live()) return;
  const bool undecided = shard.iteration.summed_count > 0 && !lane.decided;
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    const bool pushed = chunk.arrived_count() == 0 || chunk.HasArrived(rank);
    if (chunk.is_summed ? undecided : !pushed) return FaultDeparted(shard, chunk, rank);
  }
}

// It takes part in a round no more; somebody else does.
void CoreLoop::State::FaultDeparted(JobShard& shard, const Chunk& chunk, Rank rank) {
  Rank other = chunk.first_rank;
  for (std::uint32_t i = 0; i < shard.config.world_size && other == rank; ++i) {
    if (!shard.lanes[i].departed) other = Rank{i};
  }
  Fault({.code = FaultCode::kDepartedRank,
         .rank = rank,
         .other_rank = other,
         .key = chunk.key->key,
         .iteration = Iteration{chunk.applied.value + 1},
         .shard = &shard});
}

void CoreLoop::State::EndJob(JobShard& shard) {
  PHUB_CHECK(!shard.ending);
  shard.ending = true;
  DropSnapshot(shard);
  some_shard_ends = true;
  ClosePeers(shard);
  for (const Lane& lane : shard.lanes) {
    if (lane.state == Lane::State::kOpen) transports[lane.transport_index]->Close(lane.connection);
  }
}

// An ended shard is given back once every lane is closed: nothing lends its memory any more.
void CoreLoop::State::RetireEndedShards() {
  if (!some_shard_ends) return;
  some_shard_ends = false;
  for (std::size_t i = 0; i < shards.size();) {
    JobShard* shard = shards[i];
    if (!shard->ending || shard->lanes_open > 0) {
      some_shard_ends |= shard->ending;
      ++i;
      continue;
    }
    fair.RemoveJob(*shard);
    if (shard->turn.held) --held_count;
    shards[i] = shards.back();
    shards.pop_back();
    Emit({.kind = Event::Kind::kJobEnded, .shard = shard});
  }
}

}  // namespace phub::server
