// The data path of the daemon, in the order in which a gradient takes it:
//   poll -> ingest -> aggregate -> (exchange across racks, later) -> optimize -> reply
// The stages do not know each other; their order is here and nowhere else.
#include "server/core_loop.h"

#include "server/core_loop_state.h"
#include "server/ingest/ingest.h"
#include "server/optimize/optimize.h"

namespace phub::server {

using transport::Completion;
using transport::CompletionKind;

CoreLoop::CoreLoop(CoreIndex core, const Clock& clock,
                   std::span<transport::Transport* const> transports)
    : state_(std::make_unique<State>(core, clock, transports)) {}
CoreLoop::~CoreLoop() = default;
void CoreLoop::CountBlock() { state_->counters.Add(CoreCounter::loop_blocks); }
CoreIndex CoreLoop::core() const { return state_->core; }
CoreQueues& CoreLoop::queues() { return state_->queues; }
const CoreCounters& CoreLoop::counters() const { return state_->counters; }

bool CoreLoop::RunOnce() {
  State& state = *state_;
  state.counters.Add(CoreCounter::loop_runs);
  if (!state.FlushEvents()) return false;  // control is behind: nothing new until it has room
  state.now = state.clock.Now();
  bool worked = state.ExecuteCommands();
  for (std::size_t i = 0; i < state.transports.size(); ++i) {
    state.transports[i]->Tick(state.now);
    worked |= state.PollTransport(static_cast<std::uint8_t>(i));
  }
  worked |= state.FlushBacklogs();
  state.RetireEndedShards();
  state.FlushEvents();
  return worked;
}

bool CoreLoop::State::PollTransport(std::uint8_t transport_index) {
  transport::Transport& transport = *transports[transport_index];
  const std::size_t count = transport.Poll(completions);
  for (std::size_t i = 0; i < count; ++i) {
    const Completion& completion = completions[i];
    if (completion.kind == CompletionKind::kClosed) {  // errors are values, looked at first
      OnClosed(transport_index, completion);
      continue;
    }
    const LaneTable::Place* place = lane_tables[transport_index].Find(completion.connection);
    if (place == nullptr || !place->current) continue;  // what a replaced lane still had to say
    JobShard& shard = *place->shard;
    if (completion.kind == CompletionKind::kSent) {
      replies.OnSent(shard, place->rank);
    } else if (shard.live()) {
      OnReceived(shard, place->rank, *completion.message);
    }
  }
  transport.Release({completions.data(), count});
  return count > 0;
}

void CoreLoop::State::OnReceived(JobShard& shard, Rank rank,
                                 const transport::ReceivedMessage& message) {
  const ingest::Verdict verdict = ingest::Judge(shard, rank, message);
  switch (verdict.action) {
    case ingest::Action::kStage: OnGradient(shard, rank, *verdict.chunk, message.header); return;
    case ingest::Action::kDuplicate:
      counters.Add(CoreCounter::duplicates_staged);
      OnDuplicate(shard, rank, *verdict.chunk, message.header);
      return;
    case ingest::Action::kAnswer:
      counters.Add(CoreCounter::duplicates_applied);
      replies.AnswerOne(shard, *verdict.chunk, rank);
      return;
    case ingest::Action::kRecord: counters.Add(CoreCounter::records); return;
    case ingest::Action::kFault:
      CountRefusal(verdict.fault);
      Fault({.code = verdict.fault,
             .rank = rank,
             .other_rank = verdict.other,
             .key = verdict.key,
             .iteration = message.header.iteration,
             .shard = &shard});
      const Lane& lane = shard.lanes[rank.value];
      transports[lane.transport_index]->Close(lane.connection);
      return;
  }
}

void CoreLoop::State::OnGradient(JobShard& shard, Rank rank, Chunk& chunk,
                                 const wire::MessageHeader& header) {
  counters.Add(CoreCounter::gradients);
  counters.Add(CoreCounter::gradient_bytes, header.payload_bytes);
  aggregate::Stage(shard, rank, chunk, header, now);
  chunk.wants_reply[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
  if (chunk.arrived_count() == shard.config.world_size) {
    FinishRound(shard, chunk);
    return;
  }
  if (shard.departed_count > 0) {
    for (std::uint32_t other = 0; other < shard.config.world_size; ++other) {
      if (!shard.lanes[other].departed || chunk.HasArrived(Rank{other})) continue;
      Fault({.code = FaultCode::kDepartedRank,
             .rank = Rank{other},
             .other_rank = rank,
             .key = chunk.key->key,
             .iteration = header.iteration,
             .shard = &shard});
      return;
    }
  }
  RelieveFullLanes(shard, rank, chunk);
}

void CoreLoop::State::RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk) {
  std::size_t credited = 0;
  aggregate::RelieveFullLanes(shard, rank, chunk, freed, [&](const aggregate::FreedSlot& slot) {
    // Never refused: a credit that waits holds its slot, and a slot holds one gradient.
    const bool taken = replies.Credit(shard, slot.rank, slot.chunk, slot.slot);
    PHUB_CHECK(taken, "rank={} slot={}", slot.rank.value, slot.slot.value);
    ++credited;
  });
  counters.Add(CoreCounter::gradients_folded, credited);
}

void CoreLoop::State::FinishRound(JobShard& shard, Chunk& chunk) {
  optimize::ApplyRound(chunk, aggregate::GatherTerms(shard, chunk, terms), shard.config.world_size);
  aggregate::Finish(shard, chunk);
  counters.Add(CoreCounter::rounds);
  replies.Answer(shard, chunk);
}

void CoreLoop::State::OnDuplicate(JobShard& shard, Rank rank, Chunk& chunk,
                                  const wire::MessageHeader& header) {
  chunk.wants_reply[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
  if (replies.Credit(shard, rank, chunk.index, header.slot)) return;
  Fault({.code = FaultCode::kSlotOccupied,
         .rank = rank,
         .key = chunk.key->key,
         .iteration = header.iteration,
         .shard = &shard});
}

bool CoreLoop::State::FlushBacklogs() {
  bool posted = false;
  for (JobShard* shard : shards) posted |= replies.Flush(*shard);
  return posted;
}

}  // namespace phub::server
