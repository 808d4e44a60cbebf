// The data path of the daemon, in the order in which a gradient takes it:
//   poll -> ingest -> aggregate -> (exchange across racks) -> optimize -> reply
// With several jobs, rounds wait for their turn (schedule/fair_queue.h) before they are optimized.
// The stages do not know each other; their order is here and nowhere else.
#include "server/core/core_loop.h"

#include "server/core/aggregate/screening.h"
#include "server/core/core_loop_state.h"
#include "server/core/ingest/ingest.h"
#include "server/core/optimize/optimize.h"
#include "server/core/state/shard_state.h"

namespace phub::server {

using transport::Completion;
using transport::CompletionKind;

namespace {

// Rounds that waited for their turn are finished for so long; then transports are polled again, so
// that whoever has more right to the core can say so.
constexpr DurationNs kFinishTimeMax = 100 * kMicrosecond;
// Polls of one run, where several jobs share the core.
constexpr std::size_t kPollsPerRun = 4;

}  // namespace

CoreLoop::CoreLoop(CoreIndex core, const Clock& clock,
                   std::span<transport::Transport* const> transports)
    : state_(std::make_unique<State>(core, clock, transports)) {}
CoreLoop::~CoreLoop() = default;
void CoreLoop::CountBlock() { state_->counters.Add(CoreCounter::loop_blocks); }
TimeNs CoreLoop::NextTimer() const { return state_->fair.next_refill(); }
CoreIndex CoreLoop::core() const { return state_->core; }
CoreQueues& CoreLoop::queues() { return state_->queues; }
const CoreCounters& CoreLoop::counters() const { return state_->counters; }

bool CoreLoop::RunOnce() {
  State& state = *state_;
  state.counters.Add(CoreCounter::loop_runs);
  state.BeginRun();
  if (!state.FlushEvents()) {  // control is behind: nothing new until it has room
    state.TellIdle();
    return false;
  }
  bool worked = state.ExecuteCommands();
  for (transport::Transport* const transport : state.transports) transport->Tick(state.now);
  worked |= state.PollAll();
  worked |= state.FinishRounds();
  worked |= state.FlushBacklogs();
  worked |= state.AdvanceSnapshots();
  state.RetireEndedShards();
  state.FlushEvents();
  if (!worked) {
    state.fair.OnIdle();
    state.TellIdle();
  }
  state.busy = worked;
  return worked;
}

void CoreLoop::State::TellIdle() {
  for (transport::Transport* const transport : transports) transport->OnIdle();
}

// A run that had work was busy until the next one begins: no reading of the clock but this one.
void CoreLoop::State::BeginRun() {
  const TimeNs before = now;
  now = clock.Now();
  exchanges.BeginRun(now);
  if (busy) counters.Add(CoreCounter::busy_ns, static_cast<std::uint64_t>(now - before));
  busy = false;
}

// One poll of each transport. With several jobs, until nothing is left: whose round is next can be
// told only once everybody's gradients are in, or whoever has most lanes would always be found
// waiting alone. Credits bound what can be there, and so do replies what comes anew.
bool CoreLoop::State::PollAll() {
  bool any = false;
  for (std::size_t polls = 0; polls < kPollsPerRun; ++polls) {
    bool polled = false;
    for (std::size_t i = 0; i < transports.size(); ++i) {
      polled |= PollTransport(static_cast<std::uint8_t>(i));
    }
    any |= polled;
    if (!fair.Shares() && held_count == 0) break;
    UpdateHolds();
    if (!polled || !outbox.empty()) break;
  }
  return any;
}

void CoreLoop::State::UpdateHolds() {
  for (JobShard* const shard : shards) {
    const bool held = fair.MustHold(*shard);
    if (held == shard->turn.held) continue;
    shard->turn.held = held;
    held ? ++held_count : --held_count;
    for (const Lane& lane : shard->lanes) {
      if (lane.state != Lane::State::kOpen) continue;
      transports[lane.transport_index]->Hold(lane.connection, held);
    }
  }
}

bool CoreLoop::State::PollTransport(std::uint8_t transport_index) {
  transport::Transport& transport = *transports[transport_index];
  const std::size_t count = transport.Poll(completions);
  for (std::size_t i = 0; i < count; ++i) {
    const Completion& completion = completions[i];
    if (completion.kind == CompletionKind::kClosed) {
      OnClosed(transport_index, completion);
      continue;
    }
    const LaneTable::Place* place = lane_tables[transport_index].Find(completion.connection);
    if (place == nullptr || !place->current) continue;  // what a replaced lane still had to say
    JobShard& shard = *place->shard;
    if (place->rank.value >= kPeerRankBase) {
      const RackIndex rack{place->rank.value - kPeerRankBase};
      if (completion.kind == CompletionKind::kSent) {
        exchanges.OnSent(shard, rack, completion.cookie);
      } else if (shard.live()) {
        OnPeerMessage(shard, rack, *completion.message);
      }
    } else if (completion.kind == CompletionKind::kSent) {
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
  TakeIn(shard, message.header.payload_bytes);
  const ingest::Verdict verdict = ingest::Judge(shard, rank, message);
  switch (verdict.action) {
    case ingest::Action::kFault: return Refuse(shard, rank, verdict, message.header);
    case ingest::Action::kRecord: return counters.Add(CoreCounter::records);
    case ingest::Action::kDecide: return OnDecision(shard, rank, message.header);
    case ingest::Action::kNothing: return;
    case ingest::Action::kStage:
    case ingest::Action::kDuplicate:
    case ingest::Action::kAnswer:
    case ingest::Action::kAnswerPrevious: return OnAnswerable(shard, rank, verdict, message);
  }
}

// What a reply will come to, at once or with its round.
void CoreLoop::State::OnAnswerable(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                                   const transport::ReceivedMessage& message) {
  Chunk& chunk = *verdict.chunk;
  if (!replies.NoteReplyAddress(shard, chunk, rank, message.header.reply_address)) {
    const ingest::Verdict refused = {
        ingest::Action::kFault, FaultCode::kReplyAddress, {}, &chunk, chunk.key->key};
    return Refuse(shard, rank, refused, message.header);
  }
  if (verdict.action == ingest::Action::kStage) return OnGradient(shard, rank, chunk, message);
  if (verdict.action == ingest::Action::kDuplicate) {
    counters.Add(CoreCounter::duplicates_staged);
    return OnDuplicate(shard, rank, chunk, message.header);
  }
  const bool asks_previous = verdict.action == ingest::Action::kAnswerPrevious;
  OnAsked(shard, rank, chunk, Iteration{chunk.applied.value - (asks_previous ? 1u : 0u)},
          message.header.kind);
}

// Whatever comes is paid for, before anybody asks what it is: repetitions cost what news cost.
void CoreLoop::State::TakeIn(JobShard& shard, std::uint64_t bytes) {
  if (fair.Shares() && fair.TakeIn(shard, bytes, now)) counters.Add(CoreCounter::throttles);
}

// A version for one rank alone. What is pulled is paid for as if it had been pushed.
void CoreLoop::State::OnAsked(JobShard& shard, Rank rank, Chunk& chunk, Iteration version,
                              wire::MessageKind kind) {
  if (kind == wire::MessageKind::kPull) {
    counters.Add(CoreCounter::pulls);
    TakeIn(shard, chunk.reply_bytes());
  } else {
    counters.Add(CoreCounter::duplicates_applied);
    if (fair.Shares()) fair.Charge(shard, schedule::TimeToTakeIn(chunk.reply_bytes()));
  }
  replies.AnswerOne(shard, chunk, rank, version);
}

void CoreLoop::State::Refuse(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                             const wire::MessageHeader& header) {
  CountRefusal(verdict.fault);
  Fault({.code = verdict.fault,
         .rank = rank,
         .other_rank = verdict.other,
         .key = verdict.key,
         .iteration = header.iteration,
         .shard = &shard});
  const Lane& lane = shard.lanes[rank.value];
  transports[lane.transport_index]->Close(lane.connection);
}

void CoreLoop::State::OnGradient(JobShard& shard, Rank rank, Chunk& chunk,
                                 const transport::ReceivedMessage& message) {
  counters.Add(CoreCounter::gradients);
  counters.Add(CoreCounter::gradient_bytes, message.header.payload_bytes);
  if (message.header.slot == kNoSlot) counters.Add(CoreCounter::gradients_in_place);
  shard.metrics.CountGradient(message.header.payload_bytes);
  aggregate::Stage(shard, rank, chunk, message, now);
  chunk.wants_reply[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
  if (chunk.arrived_count() == shard.config.world_size) {
    CountRound(shard, rank, chunk);
    return FinishOrQueue(shard, chunk);
  }
  if (chunk.arrived_count() + 1 == shard.config.world_size) chunk.last_awaited_since = now;
  if (shard.departed_count > 0) {
    for (std::uint32_t other = 0; other < shard.config.world_size; ++other) {
      if (!shard.lanes[other].departed || chunk.HasArrived(Rank{other})) continue;
      Fault({.code = FaultCode::kDepartedRank,
             .rank = Rank{other},
             .other_rank = rank,
             .key = chunk.key->key,
             .iteration = message.header.iteration,
             .shard = &shard});
      return;
    }
  }
  RelieveFullLanes(shard, rank, chunk);
}

void CoreLoop::State::RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk) {
  std::size_t credited = 0;
  aggregate::RelieveFullLanes(shard, rank, chunk, freed, [&](const aggregate::FreedSlot& slot) {
    Credit(shard, slot);
    ++credited;
  });
  counters.Add(CoreCounter::gradients_folded, credited);
  if (fair.Shares() && credited > 0) {
    fair.Charge(shard, schedule::TimeToTakeIn(credited * shard.config.chunk_bytes));
  }
  if (shard.non_finite.seen) TellNonFinite(shard);
}

void CoreLoop::State::Credit(JobShard& shard, const aggregate::FreedSlot& slot) {
  // Refused only to a rank that sends into a slot whose credit it has not had.
  if (replies.Credit(shard, slot.rank, slot.chunk, slot.slot)) return;
  Fault({.code = FaultCode::kSlotOccupied,
         .rank = slot.rank,
         .key = shard.chunks()[slot.chunk.value]->key->key,
         .shard = &shard});
}

void CoreLoop::State::CountRound(JobShard& shard, Rank last, const Chunk& chunk) {
  counters.Add(CoreCounter::rounds);
  shard.metrics.CountRound(now - chunk.round_since);
  if (shard.config.world_size > 1) shard.metrics.CountLast(last, now - chunk.last_awaited_since);
}

// Of kLoad nobody has pushed anything, and control may take back what it brings: it does not wait.
void CoreLoop::State::FinishOrQueue(JobShard& shard, Chunk& chunk) {
  // One that is queued already, and whole again after a rank came back, stays there though nobody
  // shares any more: whoever is served twice finishes it twice.
  const bool waits = fair.Shares() || chunk.is_queued;
  if (!waits || chunk.operation == wire::RoundOperation::kLoad) return FinishRound(shard, chunk);
  counters.Add(CoreCounter::rounds_queued);
  fair.Push(shard, chunk);
}

// True if rounds were finished; then there may be more.
bool CoreLoop::State::FinishRounds() {
  fair.Refill(now);
  if (!fair.HasRounds()) return false;
  const TimeNs begin = clock.Now();
  TimeNs before = begin;
  while (before - begin < kFinishTimeMax) {
    const schedule::FairQueue::Round round = fair.Next();
    if (round.shard == nullptr) break;
    FinishRound(*round.shard, *round.chunk);
    const TimeNs after = clock.Now();
    fair.Charge(*round.shard, after - before);
    before = after;
  }
  return true;
}

void CoreLoop::State::FinishRound(JobShard& shard, Chunk& chunk) {
  if (shard.config.apply_iteration && chunk.operation == wire::RoundOperation::kReduce) {
    return chunk.is_summed ? ApplySummed(shard, chunk) : SumRound(shard, chunk);
  }
  if (shard.exchange != nullptr) return OnLocalSum(shard, chunk);
  state::BeforeRound(shard, chunk);
  if (chunk.operation != wire::RoundOperation::kLoad) {
    return ApplyAndComplete(shard, chunk, aggregate::GatherTerms(shard, chunk, term_list));
  }
  state::PutInPlace(shard, chunk, replies.OwnReplies(shard, chunk));
  CompleteRound(shard, chunk);
}

// The terms are of all ranks of the job.
void CoreLoop::State::ApplyAndComplete(JobShard& shard, Chunk& chunk, const simd::Terms& terms) {
  const std::span<std::byte* const> own = replies.OwnReplies(shard, chunk);
  const bool streams = shard.exchange == nullptr && optimize::StreamsResults(shard, own.size());
  const std::uint32_t ranks =
      shard.exchange == nullptr ? shard.config.world_size : shard.exchange->rank_count;
  if (optimize::ApplyRound(chunk, terms, ranks, own, streams)) {
    // Of jobs that span racks it names nobody here: of which rank, its own rack says.
    aggregate::NoteNonFinite(shard, chunk, shard.config.world_size);
    if (shard.non_finite.seen) TellNonFinite(shard);
    if (!shard.live()) return;  // rejected: nobody is answered
  }
  CompleteRound(shard, chunk);
}

// The next version is in place.
void CoreLoop::State::CompleteRound(JobShard& shard, Chunk& chunk, bool skipped) {
  if (chunk.operation == wire::RoundOperation::kReduce && !skipped) ++chunk.reductions;
  ++chunk.applied.value;
  chunk.applied_record[chunk.applied.value % 2] = chunk.record;
  aggregate::Finish(shard, chunk);
  state::AfterRound(shard, chunk);
  if (shard.exchange != nullptr) exchanges.PassOn(shard, chunk);
  replies.KeepVersions(shard, chunk);
  replies.Answer(shard, chunk);
}

void CoreLoop::State::OnDuplicate(JobShard& shard, Rank rank, Chunk& chunk,
                                  const wire::MessageHeader& header) {
  chunk.wants_reply[rank.value / 64] |= std::uint64_t{1} << (rank.value % 64);
  if (header.slot == kNoSlot || replies.Credit(shard, rank, chunk.index, header.slot)) {
    if (chunk.is_summed) replies.TellSummed(shard, chunk, rank);
    return;
  }
  Fault({.code = FaultCode::kSlotOccupied,
         .rank = rank,
         .key = chunk.key->key,
         .iteration = header.iteration,
         .shard = &shard});
}

bool CoreLoop::State::FlushBacklogs() {
  bool posted = false;
  for (JobShard* shard : shards) {
    if (shard->exchange != nullptr) posted |= exchanges.Flush(*shard);
    posted |= replies.Flush(*shard);
  }
  return posted;
}

// Copies on behalf of snapshots, a little at a time.
bool CoreLoop::State::AdvanceSnapshots() {
  if (snapshot_count == 0) return false;
  bool copied = false;
  for (JobShard* shard : shards) {
    if (shard->snapshot == nullptr) continue;
    copied |= state::Advance(*shard);
    ReportSnapshot(*shard);
  }
  return copied;
}

}  // namespace phub::server
