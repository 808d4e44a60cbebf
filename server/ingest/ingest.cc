#include "server/ingest/ingest.h"

#include <span>

#include "server/ingest/records.h"

namespace phub::server::ingest {
namespace {

using wire::MessageHeader;
using wire::RoundOperation;

Verdict Fault(FaultCode code, Chunk* chunk = nullptr, Rank other = {}) {
  const KeyIndex key = chunk != nullptr ? chunk->key->key : KeyIndex::Max();
  return {Action::kFault, code, other, chunk, key};
}

Verdict JudgeRecord(JobShard& shard, Rank rank, const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  wire::HyperParameters values;
  const std::span payload(message.inline_payload.data(), header.payload_bytes);
  if (header.key.value >= shard.key_count || !wire::DecodeHyperParameters(payload, values)) {
    return Fault(FaultCode::kRecordRange);
  }
  KeyState& key = *shard.keys()[header.key.value];
  const RecordVerdict verdict = AcceptRecord(key, header.record, rank, values);
  if (verdict.fault != FaultCode::kNone) {
    return {Action::kFault, verdict.fault, verdict.other, nullptr, header.key};
  }
  return {Action::kRecord, FaultCode::kNone, {}, nullptr, header.key};
}

// How many bytes this rank must send for the round that its header describes.
std::uint32_t PayloadBytesExpected(const MessageHeader& header, Rank rank, const Chunk& chunk) {
  const bool sends = header.operation == RoundOperation::kReduce || header.root == rank;
  return sends ? chunk.bytes() : 0;
}

bool SameRound(const MessageHeader& header, const Chunk& chunk) {
  return header.operation == chunk.operation && header.record == chunk.record &&
         (header.operation == RoundOperation::kReduce || header.root == chunk.root);
}

Verdict JudgeNew(const JobShard& shard, Rank rank, const MessageHeader& header, Chunk& chunk) {
  if (chunk.HasArrived(rank)) return {Action::kDuplicate, {}, {}, &chunk, chunk.key->key};
  if (header.operation == RoundOperation::kAssign && header.root.value >= shard.config.world_size) {
    return Fault(FaultCode::kRoundMismatch, &chunk, chunk.first_rank);
  }
  if (FindRecord(*chunk.key, header.record) == nullptr) {
    return Fault(FaultCode::kUnknownRecord, &chunk);
  }
  if (chunk.arrived_count() > 0 && !SameRound(header, chunk)) {
    return Fault(FaultCode::kRoundMismatch, &chunk, chunk.first_rank);
  }
  return {Action::kStage, {}, {}, &chunk, chunk.key->key};
}

Verdict JudgeGradient(JobShard& shard, Rank rank, const MessageHeader& header) {
  if (header.chunk.value >= shard.chunk_count) return Fault(FaultCode::kChunkRange);
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  const Lane& lane = shard.lanes[rank.value];
  if (header.slot.value >= lane.slot_chunk.size()) return Fault(FaultCode::kSlotRange, &chunk);
  if (lane.slot_chunk[header.slot.value] != ChunkIndex::Max()) {
    return Fault(FaultCode::kSlotOccupied, &chunk);
  }
  if (header.payload_bytes != PayloadBytesExpected(header, rank, chunk)) {
    return Fault(FaultCode::kPayloadSize, &chunk);
  }
  const std::uint64_t applied = chunk.applied.value;
  if (header.iteration.value == applied + 1) return JudgeNew(shard, rank, header, chunk);
  // Iteration 0 is the state before any round: nobody pushes it.
  if (header.iteration.value == applied && applied > 0) {
    return {Action::kAnswer, {}, {}, &chunk, chunk.key->key};
  }
  return Fault(
      header.iteration.value <= applied ? FaultCode::kStaleIteration : FaultCode::kIterationGap,
      &chunk);
}

}  // namespace

Verdict Judge(JobShard& shard, Rank rank, const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  if (header.incarnation != shard.config.incarnation) return Fault(FaultCode::kWrongIncarnation);
  if (header.membership_epoch != shard.config.membership_epoch) {
    return Fault(FaultCode::kWrongEpoch);
  }
  if (header.kind == wire::MessageKind::kGradient) return JudgeGradient(shard, rank, header);
  if (header.kind == wire::MessageKind::kRecord) return JudgeRecord(shard, rank, message);
  return Fault(FaultCode::kUnexpectedKind);
}

}  // namespace phub::server::ingest
