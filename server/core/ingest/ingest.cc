#include "server/core/ingest/ingest.h"

#include <algorithm>
#include <bit>
#include <span>

#include "common/aggregation/parameter_blocks.h"
#include "server/core/ingest/hyper_parameters.h"
#include "server/core/on_core_loop.h"
#include "server/core/shard_sums.h"

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
  ShardKey* const found = shard.FindKey(header.key);
  if (found == nullptr || !wire::DecodeHyperParameters(payload, values)) {
    return Fault(FaultCode::kHyperParametersRange);
  }
  ShardKey& key = *found;
  if (key.members != nullptr && key.members->IndexOf(rank) == kNoMember) {
    return {Action::kFault, FaultCode::kNotMember, {}, nullptr, header.key};
  }
  // Rounds of pooled keys name no version, so the first one must stay.
  if (key.pool_bytes != 0) return Fault(FaultCode::kHyperParametersRange);
  const HyperParametersVerdict verdict =
      AcceptHyperParameters(shard, key, header.hyper_version, rank, values);
  if (verdict.fault != FaultCode::kNone) {
    return {Action::kFault, verdict.fault, verdict.other, nullptr, header.key};
  }
  return {Action::kRecord, FaultCode::kNone, {}, nullptr, header.key};
}

// Whether the key of the chunk may have this kind of round.
bool OperationFits(const MessageHeader& header, const Chunk& chunk) {
  if (chunk.is_pooled()) return wire::IsPooled(header.operation);
  switch (header.operation) {
    case RoundOperation::kReduce: return chunk.sender == kEveryRank;
    case RoundOperation::kAssign: return chunk.key->movement == KeyMovement::kAllReduce;
    case RoundOperation::kMove: return chunk.sender != kEveryRank && header.root == chunk.sender;
    case RoundOperation::kLoad: return !chunk.key->collective;
    case RoundOperation::kPool:
    case RoundOperation::kPoolMove: return false;
  }
  return false;
}

// Whether the payload may have that type in this kind of round.
bool TypeFits(const MessageHeader& header, const ShardKey& key) {
  switch (header.operation) {
    case RoundOperation::kReduce: return header.type == key.gradient_type;
    case RoundOperation::kAssign:
      return header.type == key.type || header.type == key.parameter_type;
    case RoundOperation::kMove: return header.type == key.parameter_type;
    case RoundOperation::kLoad:                   // no payload
    case RoundOperation::kPoolMove: return true;  // bytes
    case RoundOperation::kPool: return numeric::IsReductionOf(header.pool.reduction, header.type);
  }
  return false;
}

// The bytes of the round in this chunk, which every rank that has a payload sends.
std::uint32_t RoundBytes(const MessageHeader& header, const Chunk& chunk) {
  switch (header.operation) {
    case RoundOperation::kReduce: return chunk.GradientBytes();
    case RoundOperation::kAssign:
    case RoundOperation::kMove: return chunk.Bytes(header.type);
    case RoundOperation::kLoad: return 0;
    case RoundOperation::kPool:
    case RoundOperation::kPoolMove: return chunk.PoolBytes(header);
  }
  return 0;
}

bool SameRound(const MessageHeader& header, const Chunk& chunk) {
  if (chunk.is_pooled()) return chunk.pool.IsOf(header);
  if (header.operation != chunk.operation || header.hyper_version != chunk.hyper_version)
    return false;
  return !wire::HasRoot(header.operation) ||
         (header.root == chunk.root && header.type == chunk.payload_type);
}

std::uint32_t RanksOfJob(const JobShard& shard) {
  return std::max(shard.config.world_size, shard.config.ranks_of_job);
}

bool MayBeRoot(const JobShard& shard, Rank root, const Chunk& chunk) {
  return chunk.members == nullptr ? root.value < RanksOfJob(shard) : chunk.members->HasInJob(root);
}

Verdict JudgeNew(const JobShard& shard, Rank rank, const MessageHeader& header, Chunk& chunk) {
  if (chunk.HasArrived(rank)) return {Action::kDuplicate, {}, {}, &chunk, chunk.key->key};
  if (wire::HasRoot(header.operation) && !MayBeRoot(shard, header.root, chunk)) {
    return Fault(FaultCode::kRoundMismatch, &chunk, chunk.first_rank);
  }
  if (header.operation == RoundOperation::kLoad && !shard.CheckpointIsLoaded(chunk)) {
    return Fault(FaultCode::kNoCheckpoint, &chunk);
  }
  if (!chunk.is_pooled() && FindHyperParameters(*chunk.key, header.hyper_version) == nullptr) {
    return Fault(FaultCode::kUnknownHyperParameters, &chunk);
  }
  if (HasBegun(shard, chunk) && !SameRound(header, chunk)) {
    return Fault(FaultCode::kRoundMismatch, &chunk, chunk.first_rank);
  }
  return {Action::kStage, {}, {}, &chunk, chunk.key->key};
}

// kNoSlot is valid: the transport accepts it only for payload in shared memory or without payload.
FaultCode JudgeSlot(const Lane& lane, SlotIndex slot) {
  if (slot == kNoSlot) return FaultCode::kNone;
  if (slot.value >= lane.slot_chunk.size()) return FaultCode::kSlotRange;
  return lane.slot_chunk[slot.value] == ChunkIndex::Max() ? FaultCode::kNone
                                                          : FaultCode::kSlotOccupied;
}

bool Aligned(const std::byte* payload, ElementType type) {
  return reinterpret_cast<std::uintptr_t>(payload) % numeric::ElementBytes(type) == 0;
}

bool AnnouncesWhole(const JobShard& shard, const MessageHeader& header) {
  const ChunkIndex chunk = header.chunk;
  return shard.sums != nullptr && shard.sums->Has(chunk) && header.payload_bytes > 0 &&
         header.payload_bytes == shard.sums->stream.BlocksOf(chunk);
}

// As a gradient, but the aggregator gets its payload.
Verdict JudgeAnnouncement(JobShard& shard, Rank rank, const MessageHeader& header) {
  if (header.chunk.value >= shard.chunk_count) return Fault(FaultCode::kChunkRange);
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  if (shard.IsHole(chunk)) return Fault(FaultCode::kChunkRange);
  if (header.operation != RoundOperation::kReduce) {
    return Fault(FaultCode::kUnexpectedKind, &chunk);
  }
  if (!AnnouncesWhole(shard, header)) return Fault(FaultCode::kPayloadSize, &chunk);
  if (!TypeFits(header, *chunk.key)) return Fault(FaultCode::kType, &chunk);
  const std::uint64_t applied = chunk.applied.value;
  if (header.iteration.value == applied + 1) {
    Verdict verdict = JudgeNew(shard, rank, header, chunk);
    const bool is_good = verdict.action == Action::kStage || verdict.action == Action::kDuplicate;
    if (is_good) verdict.action = Action::kAnnounce;
    return verdict;
  }
  if (header.iteration.value == applied && applied > 0) {
    return {Action::kSendAgain, {}, {}, &chunk, chunk.key->key};
  }
  return Fault(
      header.iteration.value <= applied ? FaultCode::kStaleIteration : FaultCode::kIterationGap,
      &chunk);
}

Verdict JudgeMissing(JobShard& shard, const MessageHeader& header) {
  if (header.chunk.value >= shard.chunk_count) return Fault(FaultCode::kChunkRange);
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  if (shard.IsHole(chunk)) return Fault(FaultCode::kChunkRange);
  if (shard.sums == nullptr || !shard.sums->Has(chunk.index)) {
    return Fault(FaultCode::kUnexpectedKind, &chunk);
  }
  const std::uint32_t blocks = ParameterBlocksOf(shard, chunk);
  if (header.payload_bytes != 0 && header.payload_bytes != aggregation::BlockSetBytes(blocks)) {
    return Fault(FaultCode::kPayloadSize, &chunk);
  }
  const std::uint64_t applied = chunk.applied.value;
  if (header.iteration.value == applied + 1) return {Action::kNothing, {}, {}, nullptr, {}};
  if (header.iteration.value == applied && applied > 0) {
    return {Action::kSendAgain, {}, {}, &chunk, chunk.key->key};
  }
  return Fault(
      header.iteration.value <= applied ? FaultCode::kStaleIteration : FaultCode::kIterationGap,
      &chunk);
}

Verdict JudgeGradient(JobShard& shard, Rank rank, const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  if (header.chunk.value >= shard.chunk_count) return Fault(FaultCode::kChunkRange);
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  if (shard.IsHole(chunk)) return Fault(FaultCode::kChunkRange);
  if (!chunk.IsMember(rank)) return Fault(FaultCode::kNotMember, &chunk);
  const bool decided = shard.config.apply_iteration && !chunk.key->collective;
  if (header.flags != 0 && (!decided || header.operation != RoundOperation::kReduce)) {
    return Fault(FaultCode::kUnexpectedKind, &chunk);
  }
  const FaultCode slot_fault = JudgeSlot(shard.lanes[rank.value], header.slot);
  if (slot_fault != FaultCode::kNone) return Fault(slot_fault, &chunk);
  if (!OperationFits(header, chunk)) return Fault(FaultCode::kUnexpectedKind, &chunk);
  if (!TypeFits(header, *chunk.key)) return Fault(FaultCode::kType, &chunk);
  const Rank rank_in_job{shard.config.rank_base + rank.value};
  const std::uint32_t bytes = RoundBytes(header, chunk);
  const bool sends = !wire::HasRoot(header.operation) || header.root == rank_in_job;
  if (header.payload_bytes != (sends ? bytes : 0) || (chunk.is_pooled() && bytes == 0)) {
    return Fault(FaultCode::kPayloadSize, &chunk);
  }
  if (!Aligned(message.payload, header.type)) return Fault(FaultCode::kAlignment, &chunk);
  const numeric::GradientEncoding& encoding = chunk.key->encoding;
  if (header.operation == RoundOperation::kReduce && !encoding.none() &&
      !numeric::IsEncoded(encoding, chunk.element_count, message.payload)) {
    return Fault(FaultCode::kEncoding, &chunk);
  }
  const std::uint64_t applied = chunk.applied.value;
  if (header.iteration.value == applied + 1) {
    // A rank that has announced it pushes it only when asked to.
    if (shard.sums != nullptr && shard.sums->HasAnnounced(chunk.index, rank)) {
      return Fault(FaultCode::kUnexpectedKind, &chunk);
    }
    return JudgeNew(shard, rank, header, chunk);
  }
  // Iteration 0 is the state before any round and is never pushed.
  if (header.iteration.value == applied && applied > 0) {
    // A rank repeats the push that it has made, so its reply has the size that it expects.
    if (chunk.is_pooled() && !chunk.applied_pool.IsOf(header)) {
      return Fault(FaultCode::kRoundMismatch, &chunk);
    }
    return {Action::kAnswer, {}, {}, &chunk, chunk.key->key};
  }
  return Fault(
      header.iteration.value <= applied ? FaultCode::kStaleIteration : FaultCode::kIterationGap,
      &chunk);
}

// Pulls are allowed only if two versions are kept. Otherwise the next round could overwrite the
// current version while it is sent, because a rank that only pulls does not hold that round back.
Verdict JudgePull(JobShard& shard, const MessageHeader& header) {
  if (!shard.config.restart) return Fault(FaultCode::kUnexpectedKind);
  if (header.chunk.value >= shard.chunk_count) return Fault(FaultCode::kChunkRange);
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  const bool current = header.iteration == Iteration::Max() || header.iteration == chunk.applied;
  if (current) return {Action::kAnswer, {}, {}, &chunk, chunk.key->key};
  if (header.iteration.value + 1 == chunk.applied.value) {
    return {Action::kAnswerPrevious, {}, {}, &chunk, chunk.key->key};
  }
  return Fault(FaultCode::kVersionGone, &chunk);
}

// A decision is valid only when every chunk is summed: only then can the rank know of all sums.
Verdict JudgeDecision(const JobShard& shard, const MessageHeader& header) {
  const ShardIteration& iteration = shard.iteration;
  if (!shard.config.apply_iteration) return Fault(FaultCode::kUnexpectedKind);
  if (header.iteration.value != 0 && header.iteration.value == iteration.decisions) {
    return {Action::kNothing, {}, {}, nullptr, KeyIndex::Max()};
  }
  const auto scale = std::bit_cast<double>(header.value_bits);
  const bool can_be = scale >= 0.0 && scale <= 1.0;  // false for a NaN
  if (header.iteration.value != iteration.decisions + 1 || !can_be || iteration.chunk_count == 0 ||
      iteration.summed_count != iteration.chunk_count) {
    return Fault(FaultCode::kDecision);
  }
  const bool skip = (header.flags & wire::kFlagSkip) != 0;
  if (iteration.decided_count > 0 && (skip != iteration.skip || scale != iteration.scale)) {
    return Fault(FaultCode::kDecisionMismatch, nullptr, iteration.first_rank);
  }
  return {Action::kDecide, {}, {}, nullptr, KeyIndex::Max()};
}

}  // namespace

Verdict Judge(JobShard& shard, Rank rank, const transport::ReceivedMessage& message) {
  PHUB_ON_CORE_LOOP();
  const MessageHeader& header = message.header;
  if (header.incarnation != shard.config.incarnation) return Fault(FaultCode::kWrongIncarnation);
  if (header.membership_epoch != shard.config.membership_epoch) {
    return Fault(FaultCode::kWrongEpoch);
  }
  if (header.kind == wire::MessageKind::kGradient) return JudgeGradient(shard, rank, message);
  if (header.kind == wire::MessageKind::kHyperParameters) return JudgeRecord(shard, rank, message);
  if (header.kind == wire::MessageKind::kAnnounce) return JudgeAnnouncement(shard, rank, header);
  if (header.kind == wire::MessageKind::kMissing) return JudgeMissing(shard, header);
  if (header.kind == wire::MessageKind::kPull) return JudgePull(shard, header);
  if (header.kind == wire::MessageKind::kDecision) return JudgeDecision(shard, header);
  return Fault(FaultCode::kUnexpectedKind);
}

namespace {

ConflictSide SideOf(const ShardKey& key, RoundOperation operation, Rank root, ElementType type,
                    HyperVersion version) {
  return {.is_known = true,
          .operation = operation,
          .root = root,
          .type = type,
          .version = version,
          .has_values = true,
          .values = key.ValuesOf(version)};
}

}  // namespace

void NoteConflict(JobShard& shard, const Verdict& verdict,
                  const transport::ReceivedMessage& message) {
  if (shard.faulted) return;
  const MessageHeader& header = message.header;
  Conflict& conflict = shard.conflict;
  if (verdict.fault == FaultCode::kHyperParametersMismatch) {
    const ShardKey& key = *shard.FindKey(verdict.key);
    conflict.other = SideOf(key, {}, {}, {}, header.hyper_version);
    conflict.source = conflict.other;
    const std::span payload(message.inline_payload.data(), header.payload_bytes);
    conflict.source.has_values = wire::DecodeHyperParameters(payload, conflict.source.values);
  }
  if (verdict.fault == FaultCode::kRoundMismatch) {
    const Chunk& chunk = *verdict.chunk;
    conflict.source =
        SideOf(*chunk.key, header.operation, header.root, header.type, header.hyper_version);
    conflict.source.pool = header.pool;
    if (!HasBegun(shard, chunk) || header.iteration == chunk.applied) return;
    conflict.other =
        SideOf(*chunk.key, chunk.operation, chunk.root, chunk.payload_type, chunk.hyper_version);
    conflict.other.pool = chunk.pool.round;
  }
  if (verdict.fault == FaultCode::kDecisionMismatch) {
    conflict.source = {.is_known = true,
                       .skips = (header.flags & wire::kFlagSkip) != 0,
                       .scale = std::bit_cast<double>(header.value_bits)};
    conflict.other = {
        .is_known = true, .skips = shard.iteration.skip, .scale = shard.iteration.scale};
  }
}

}  // namespace phub::server::ingest
