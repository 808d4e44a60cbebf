#include "server/core/rounds/rounds.h"

#include "common/base/check.h"
#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/rounds/across_racks.h"
#include "server/core/rounds/fixed_sums.h"
#include "server/core/rounds/plain.h"
#include "server/core/rounds/sum_sequencer.h"
#include "server/core/rounds/whole_iteration.h"

namespace phub::server {

Rounds::Rounds(LoopContext& loop, Outbox& outbox, Turns& turns, reply::ReplyStage& replies,
               exchange::ExchangeStage& exchanges)
    : stages_{loop, outbox, turns, replies, exchanges} {}

RoundPolicy Rounds::PolicyFor(const JobShard& shard) {
  PHUB_CHECK(shard.exchange == nullptr || !shard.config.apply_iteration,
             "control refuses apply=iteration for jobs that span racks");
  PHUB_CHECK(shard.exchange == nullptr || shard.config.sum_block == 0,
             "control refuses sum=fixed for jobs that span racks");
  if (shard.exchange != nullptr) return RoundPolicy::kAcrossRacks;
  if (shard.config.apply_iteration) return RoundPolicy::kWholeIteration;
  return shard.config.sum_block != 0 ? RoundPolicy::kFixedSums : RoundPolicy::kPlain;
}

void Rounds::Finish(JobShard& shard, Chunk& chunk) {
  PHUB_DCHECK(shard.live() && chunk.IsWhole(), "chunk={}", chunk.index.value);
  const TimeNs begin = BeginOfWork(shard);
  Complete(shard, chunk, Make(shard, chunk), begin);
}

TimeNs Rounds::BeginOfWork(const JobShard& shard) const {
  return shard.trace == nullptr ? 0 : stages_.loop.clock.Now();
}

// Publishes the version if there is one, and adds the work to the shard's trace if there is one.
void Rounds::Complete(JobShard& shard, Chunk& chunk, Made made, TimeNs begin) {
  if (shard.trace == nullptr) [[likely]] {
    if (made != Made::kNothing) Publish(shard, chunk, made);
    return;
  }
  TracedSpan span = SpanOf(chunk);
  span.begin = begin;
  span.end = stages_.loop.clock.Now();
  if (made == Made::kNothing) {
    span.work = TracedSpan::Work::kSum;
    if (shard.live()) shard.trace->Add(span);
    return;
  }
  span.work = TracedSpan::Work::kUpdate;
  span.skipped = made == Made::kSkipped;
  shard.trace->Add(span);
  Publish(shard, chunk, made);
  span.work = TracedSpan::Work::kReply;
  span.begin = span.end;
  span.end = stages_.loop.clock.Now();
  shard.trace->Add(span);
}

Made Rounds::Make(JobShard& shard, Chunk& chunk) {
  switch (shard.round_policy) {
    case RoundPolicy::kAcrossRacks:
      if (chunk.exchange == nullptr) break;  // a group's, within this rack
      return across_racks::Finish(stages_, shard, chunk);
    case RoundPolicy::kWholeIteration:
      // Outside iterations, rounds are plain unless they are summed in fixed point.
      if (chunk.operation != wire::RoundOperation::kReduce || chunk.key->collective) {
        return fixed_sums::Finish(stages_, shard, chunk);
      }
      return whole_iteration::Finish(stages_, shard, chunk);
    case RoundPolicy::kFixedSums: return fixed_sums::Finish(stages_, shard, chunk);
    case RoundPolicy::kPlain: break;
  }
  return plain::Finish(stages_, shard, chunk);
}

void Rounds::OnRackMessage(JobShard& shard, RackIndex rack,
                           const transport::ReceivedMessage& message) {
  stages_.turns.Charged(shard, message.header.payload_bytes, [&] {
    const TimeNs begin = BeginOfWork(shard);
    const auto [chunk, made] = across_racks::OnMessage(stages_, shard, rack, message);
    if (made != Made::kNothing) Complete(shard, *chunk, made, begin);
  });
}

// Makes the next version current and sends it to the workers and racks that wait for it.
void Rounds::Publish(JobShard& shard, Chunk& chunk, Made made) {
  if (wire::IsIteration(chunk.operation) && made != Made::kSkipped) {
    ++chunk.reductions;
    RoundProgress& progress = chunk.key->collective ? shard.metrics.collectives : shard.metrics;
    progress.NoteIteration(chunk.reductions, stages_.loop.now);
  }
  if (chunk.operation == wire::RoundOperation::kLoad) {
    shard.metrics.ResetIteration(chunk.reductions);
  }
  ++chunk.applied.value;
  SumSequencer::OnPublished(shard, chunk, stages_.loop.counters);
  chunk.applied_pool = chunk.pool;
  chunk.applied_hyper_version[chunk.applied.value % 2] = chunk.hyper_version;
  aggregate::Finish(shard, chunk);
  checkpoint::AfterRound(shard, chunk);
  if (chunk.exchange != nullptr) stages_.exchanges.PassOn(shard, chunk);
  stages_.replies.KeepVersions(shard, chunk);
  stages_.replies.Answer(shard, chunk);
}

}  // namespace phub::server
