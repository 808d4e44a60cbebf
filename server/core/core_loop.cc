// Only RunOnce() defines the order of the stages; the stages do not know each other. Their shared
// state is in loop/. rounds/ turns gradients into rounds, and rounds into versions.
#include "server/core/core_loop.h"

#include <algorithm>
#include <array>

#include "common/base/owner_thread.h"
#include "server/core/exchange/exchange_invariants.h"
#include "server/core/key_remover.h"
#include "server/core/loop/keep_alives.h"
#include "server/core/loop/lanes.h"
#include "server/core/loop/outbox.h"
#include "server/core/loop/reports.h"
#include "server/core/loop/turns.h"
#include "server/core/on_core_loop.h"
#include "server/core/orders.h"
#include "server/core/rounds/intake.h"
#include "server/core/rounds/rounds.h"
#include "server/core/shard_invariants.h"

namespace phub::server {

using transport::Completion;
using transport::CompletionKind;
using transport::ReceivedMessage;

namespace {

constexpr std::size_t kCompletionsPerPoll = 64;  // bounds the work of one RunOnce
// The most polls of one run while several jobs share the core.
constexpr std::size_t kPollsPerRun = 4;
constexpr std::size_t kOutboxMax =
    kLanesUnreportedMax + kReportsUntakenMax + kEventsPerShardMax * kShardsMax;

// The chunk that a message is about; null: there is no such chunk. The number is not validated.
[[maybe_unused]] const Chunk* Touched(const JobShard& shard, LaneOwner from, ChunkIndex number) {
  if (from.is_worker())
    return number.value < shard.chunk_count ? shard.chunks()[number.value] : nullptr;
  const exchange::ChunkExchange* const state = shard.exchange->Find(number.value);
  return state != nullptr ? state->chunk : nullptr;
}

}  // namespace

// The parts of a loop, each after the parts that it uses.
struct CoreLoop::Impl {
  Impl(CoreIndex core, const Clock& clock, std::span<transport::Transport* const> transports,
       DurationNs liveness_timeout)
      : loop(core, clock, transports), keep_alives(loop, liveness_timeout) {
    loop.long_work = &keep_alives;
  }

  void BeginRun();
  template <typename OnMessage>
  bool Poll(OnMessage&& on_message);
  template <typename OnMessage>
  bool PollTransport(std::uint8_t transport_index, OnMessage& on_message);
  void OnRackMessage(JobShard& shard, RackIndex rack, const ReceivedMessage& message);
  void FinishRound(JobShard& shard, Chunk& chunk);
  bool FlushBacklogs();
  void TellIdle();
  void CheckTouched(const JobShard& shard, LaneOwner from, ChunkIndex chunk) const;
  void CheckAll() const;

  CoreQueues queues;
  LoopContext loop;
  Outbox outbox{queues.events, loop.counters, kOutboxMax};
  reply::ReplyStage replies{loop.transports, loop.counters};
  exchange::ExchangeStage exchanges{loop.transports, loop.counters};
  LoopLanes lanes{loop, outbox, replies};
  Turns turns{loop, lanes};
  Rounds rounds{loop, outbox, turns, replies, exchanges};
  SumSequencer sums{rounds.stages()};
  Intake intake{rounds.stages(), sums};
  Reports reports{loop, outbox};
  KeyRemover remover{loop, outbox, turns};
  Orders orders{loop, queues.commands, outbox, lanes, turns, reports, remover, sums};
  KeepAlives keep_alives;
  OwnerThread owner;
  bool busy = false;  // the run before this one had work
  std::array<Completion, kCompletionsPerPoll> completions;
};

CoreLoop::CoreLoop(CoreIndex core, const Clock& clock,
                   std::span<transport::Transport* const> transports, DurationNs liveness_timeout)
    : impl_(std::make_unique<Impl>(core, clock, transports, liveness_timeout)) {}
CoreLoop::~CoreLoop() = default;
void CoreLoop::CountBlock() { impl_->loop.counters.Add(CoreCounter::loop_blocks); }
TimeNs CoreLoop::NextTimer() const {
  return std::min({impl_->turns.next_refill(), impl_->keep_alives.next(), impl_->sums.next(),
                   impl_->exchanges.next()});
}
CoreIndex CoreLoop::core() const { return impl_->loop.core; }
CoreQueues& CoreLoop::queues() { return impl_->queues; }
const CoreCounters& CoreLoop::counters() const { return impl_->loop.counters; }

bool CoreLoop::RunOnce() {
  Impl& loop = *impl_;
  loop.owner.AssertOwned();
  const OnCoreLoop on_core_loop;
  loop.BeginRun();
  loop.outbox.Flush();
  bool worked = loop.orders.Execute();
  worked |= loop.Poll([&](JobShard& shard, LaneOwner from, const ReceivedMessage& message) {
    if (from.is_rack()) return loop.OnRackMessage(shard, from.rack(), message);  // exchange
    const Rank rank = from.rank();
    const ingest::Verdict verdict = loop.intake.Ingest(shard, rank, message);
    Chunk* const whole = loop.intake.Aggregate(shard, rank, verdict, message);
    if (whole == nullptr || loop.turns.PutOff(shard, *whole)) return;  // schedule
    loop.FinishRound(shard, *whole);  // (exchange,) optimize, reply
  });
  worked |= loop.sums.Poll([&](JobShard& shard, Chunk& chunk) {
    if (!loop.turns.PutOff(shard, chunk)) loop.FinishRound(shard, chunk);
  });
  worked |= loop.turns.FinishDue([&](JobShard& shard, Chunk& chunk) {  // rounds that were queued
    loop.FinishRound(shard, chunk);
  });
  loop.intake.RelieveLanes();
  worked |= loop.FlushBacklogs();  // replies that found no room before
  worked |= loop.reports.AdvanceSnapshots();
  loop.remover.Advance();
  loop.keep_alives.EndRun();
  loop.orders.RetireEndedShards();
  loop.outbox.Flush();
  if (!worked) {
    loop.turns.OnIdle();
    loop.TellIdle();
  }
  loop.busy = worked;
  return worked;
}

// A run that had work counts as busy until the next run begins, so one reading of the clock per run
// is enough.
void CoreLoop::Impl::BeginRun() {
  loop.counters.Add(CoreCounter::loop_runs);
  const TimeNs before = loop.now;
  loop.now = loop.clock.Now();
  exchanges.BeginRun(loop.now);
  if (busy) loop.counters.Add(CoreCounter::busy_ns, static_cast<std::uint64_t>(loop.now - before));
  busy = false;
}

// Polls each transport once. With several jobs it polls up to kPollsPerRun times, until no input is
// left: the order of rounds is fair only if all gradients that have arrived are known; otherwise
// the job with the most lanes would often seem to wait alone. Credits and replies bound the input.
template <typename OnMessage>
bool CoreLoop::Impl::Poll(OnMessage&& on_message) {
  for (transport::Transport* const transport : loop.transports) transport->Tick(loop.now);
  bool any = false;
  for (std::size_t polls = 0; polls < kPollsPerRun; ++polls) {
    bool polled = false;
    for (std::size_t i = 0; i < loop.transports.size(); ++i) {
      polled |= PollTransport(static_cast<std::uint8_t>(i), on_message);
    }
    any |= polled;
    if (!turns.UpdateHolds() || !polled) break;
  }
  return any;
}

template <typename OnMessage>
bool CoreLoop::Impl::PollTransport(std::uint8_t transport_index, OnMessage& on_message) {
  transport::Transport& transport = *loop.transports[transport_index];
  const std::size_t count = transport.Poll(completions);
  PHUB_CHECK(count <= completions.size(), "count={}", count);
  for (std::size_t i = 0; i < count; ++i) {
    const Completion& completion = completions[i];
    if (completion.kind == CompletionKind::kClosed) {
      lanes.OnClosed(transport_index, completion);
      continue;
    }
    const LaneTable::Place* place = lanes.Find(transport_index, completion.connection);
    if (place == nullptr || !place->current) continue;  // a late message of a replaced lane
    JobShard& shard = *place->shard;
    if (completion.kind == CompletionKind::kReceived) {
      if (!shard.live()) continue;
      const LaneOwner from = place->owner;
      if (completion.message->header.kind == wire::MessageKind::kKeepAlive) {
        turns.ChargeIngress(shard, 0);
        continue;
      }
      on_message(shard, from, *completion.message);
      if constexpr (kCheckedBuild) CheckTouched(shard, from, completion.message->header.chunk);
    } else if (place->owner.is_rack()) {
      exchanges.OnSent(shard, place->owner.rack(), completion.cookie);
    } else {
      replies.OnSent(shard, place->owner.rank());
    }
  }
  transport.Release({completions.data(), count});
  return count > 0;
}

void CoreLoop::Impl::OnRackMessage(JobShard& shard, RackIndex rack,
                                   const ReceivedMessage& message) {
  rounds.OnRackMessage(shard, rack, message);
  keep_alives.Note(message.header.payload_bytes);
}

void CoreLoop::Impl::FinishRound(JobShard& shard, Chunk& chunk) {
  rounds.Finish(shard, chunk);
  keep_alives.Note(std::uint64_t{chunk.member_count} * chunk.Bytes(chunk.key->gradient_type));
}

bool CoreLoop::Impl::FlushBacklogs() {
  bool posted = false;
  for (JobShard* const shard : loop.shards) {
    if (shard->exchange != nullptr) posted |= exchanges.Flush(*shard);
    posted |= replies.Flush(*shard);
    posted |= sums.Flush(*shard);
  }
  return posted;
}

void CoreLoop::Impl::TellIdle() {
  for (transport::Transport* const transport : loop.transports) transport->OnIdle();
}

// Checks the lane and the chunk that a message touched. `chunk` is from the message, not validated.
void CoreLoop::Impl::CheckTouched(const JobShard& shard, LaneOwner from, ChunkIndex chunk) const {
  if (from.is_worker()) CheckLane(shard, from.rank());
  const Chunk* const touched = Touched(shard, from, chunk);
  if (touched == nullptr) return;
  CheckChunk(shard, *touched);
  exchange::CheckExchange(shard, *touched);
}

void CoreLoop::Impl::CheckAll() const {
  for (const JobShard* const shard : loop.shards) {
    CheckShard(*shard);
    if (shard->exchange != nullptr) exchange::CheckExchanges(*shard);
  }
  lanes.CheckInvariants();
  turns.CheckInvariants();
}

void CoreLoop::CheckInvariants() const { impl_->CheckAll(); }

}  // namespace phub::server
