#include "server/core/rounds/intake.h"

#include "common/base/check.h"
#include "server/core/count_work.h"
#include "server/core/rounds/departed.h"
#include "server/core/rounds/whole_iteration.h"

namespace phub::server {
namespace {

void NoteWantsReply(Chunk& chunk, Rank rank) {
  const std::uint32_t member = chunk.IndexOf(rank);
  chunk.wants_reply[member / 64] |= std::uint64_t{1} << (member % 64);
}

}  // namespace

ingest::Verdict Intake::Ingest(JobShard& shard, Rank rank,
                               const transport::ReceivedMessage& message) {
  PHUB_DCHECK(shard.live() && shard.lanes[rank.value].state == Lane::State::kOpen, "rank={}",
              rank.value);
  stages_.turns.ChargeIngress(shard, message.header.payload_bytes);
  return ingest::Judge(shard, rank, message);
}

Chunk* Intake::Aggregate(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                         const transport::ReceivedMessage& message) {
  switch (verdict.action) {
    case ingest::Action::kStage:
    case ingest::Action::kAnnounce:
    case ingest::Action::kDuplicate:
    case ingest::Action::kAnswer:
    case ingest::Action::kAnswerPrevious: return OnChunkMessage(shard, rank, verdict, message);
    case ingest::Action::kSendAgain: sums_.OnMissing(shard, rank, *verdict.chunk, message); break;
    case ingest::Action::kRecord: stages_.loop.counters.Add(CoreCounter::records); break;
    case ingest::Action::kDecide:
      whole_iteration::Decide(stages_, shard, rank, message.header);
      break;
    case ingest::Action::kFault:
      ingest::NoteConflict(shard, verdict, message);
      Refuse(shard, rank, verdict, message.header);
      break;
    case ingest::Action::kNothing: break;
  }
  return nullptr;
}

// Handles messages that get a reply, at once or with their round.
Chunk* Intake::OnChunkMessage(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                              const transport::ReceivedMessage& message) {
  Chunk& chunk = *verdict.chunk;
  if (!stages_.replies.NoteReplyAddress(shard, chunk, rank, message.header)) {
    const ingest::Verdict refused = {
        ingest::Action::kFault, FaultCode::kReplyAddress, {}, &chunk, chunk.key->key};
    Refuse(shard, rank, refused, message.header);
    return nullptr;
  }
  if (verdict.action == ingest::Action::kStage) return OnGradient(shard, rank, chunk, message);
  if (verdict.action == ingest::Action::kAnnounce) {
    sums_.OnAnnounce(shard, rank, chunk, message);
    return nullptr;
  }
  if (verdict.action == ingest::Action::kDuplicate) {
    OnDuplicate(shard, rank, chunk, message.header);
    return nullptr;
  }
  const bool asks_previous = verdict.action == ingest::Action::kAnswerPrevious;
  OnAsked(shard, rank, chunk, Iteration{chunk.applied.value - (asks_previous ? 1u : 0u)},
          message.header.kind);
  return nullptr;
}

Chunk* Intake::OnGradient(JobShard& shard, Rank rank, Chunk& chunk,
                          const transport::ReceivedMessage& message) {
  CoreCounters& counters = stages_.loop.counters;
  counters.Add(CoreCounter::gradients);
  counters.Add(CoreCounter::gradient_bytes, message.header.payload_bytes);
  if (message.header.slot == kNoSlot && message.header.payload_bytes > 0) {
    counters.Add(CoreCounter::gradients_in_place);
  }
  CountGradient(shard, chunk, message.header.payload_bytes);
  if (message.header.slot != kNoSlot) {
    shard.CountMemory(MemoryWork::kLanding, {.written = message.header.payload_bytes});
  }
  const bool begins = !HasBegun(shard, chunk);
  aggregate::Stage(shard, rank, chunk, message, begins ? stages_.loop.now : chunk.round_since);
  sums_.OnPushed(shard, chunk);
  NoteWantsReply(chunk, rank);
  if (chunk.IsWhole()) {
    stages_.CountRound(shard, rank, chunk, stages_.loop.now);
    return &chunk;
  }
  if (chunk.arrived_count() + 1 == chunk.member_count) {
    chunk.last_awaited_since = stages_.loop.now;
  }
  if (departed::FaultIfNeeded(stages_.outbox, shard, chunk, rank)) return nullptr;
  RelieveFullLanes(shard, rank, chunk);
  return nullptr;
}

void Intake::RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk) {
  std::size_t credited = 0;
  aggregate::RelieveFullLanes(shard, rank, chunk, stages_.freed,
                              [&](const aggregate::FreedSlot& slot) {
                                stages_.Credit(shard, slot);
                                ++credited;
                              });
  NoteFolded(shard, credited);
}

void Intake::RelieveLanes() {
  if (!stages_.loop.relief_due) return;
  stages_.loop.relief_due = false;
  for (JobShard* const shard : stages_.loop.shards) {
    if (!shard->live()) continue;
    std::size_t credited = 0;
    aggregate::RelieveLanes(*shard, stages_.freed, [&](const aggregate::FreedSlot& slot) {
      stages_.Credit(*shard, slot);
      ++credited;
    });
    NoteFolded(*shard, credited);
  }
}

void Intake::NoteFolded(JobShard& shard, std::size_t credited) {
  stages_.loop.counters.Add(CoreCounter::gradients_folded, credited);
  if (credited > 0) stages_.turns.ChargeWork(shard, credited * shard.config.chunk_bytes);
  stages_.outbox.ReportNonFinite(shard);
}

// The gradient had already arrived: credits the slot; the round's reply answers the rank.
void Intake::OnDuplicate(JobShard& shard, Rank rank, Chunk& chunk,
                         const wire::MessageHeader& header) {
  stages_.loop.counters.Add(CoreCounter::duplicates_staged);
  NoteWantsReply(chunk, rank);
  if (header.slot == kNoSlot || stages_.replies.Credit(shard, rank, chunk.index, header.slot)) {
    if (chunk.is_summed) stages_.replies.TellSummed(shard, chunk, rank);
    return;
  }
  stages_.outbox.Fault({.code = FaultCode::kSlotOccupied,
                        .source = rank,
                        .key = chunk.key->key,
                        .iteration = header.iteration,
                        .shard = &shard});
}

// Sends a version to one rank. A pull is charged like a push.
void Intake::OnAsked(JobShard& shard, Rank rank, Chunk& chunk, Iteration version,
                     wire::MessageKind kind) {
  if (kind == wire::MessageKind::kPull) {
    stages_.loop.counters.Add(CoreCounter::pulls);
    stages_.turns.ChargeIngress(shard, chunk.reply_bytes());
  } else {
    stages_.loop.counters.Add(CoreCounter::duplicates_applied);
    stages_.turns.ChargeWork(shard, chunk.reply_bytes());
  }
  stages_.replies.AnswerOne(shard, chunk, rank, version);
}

void Intake::Refuse(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                    const wire::MessageHeader& header) {
  stages_.outbox.CountRefusal(verdict.fault);
  stages_.outbox.Fault({.code = verdict.fault,
                        .source = rank,
                        .other = verdict.other,
                        .key = verdict.key,
                        .iteration = header.iteration,
                        .shard = &shard});
  const Lane& lane = shard.lanes[rank.value];
  stages_.loop.transports[lane.transport_index]->Close(lane.connection);
}

}  // namespace phub::server
