#include "server/exchange/exchange.h"

#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/fnv1a.h"
#include "common/simd/kernels.h"

namespace phub::server::exchange {
namespace {

using wire::MessageHeader;
using wire::RoundOperation;

enum Kind : std::uint32_t { kPartial = 0, kParameters = 1 };

std::uint32_t EntryOf(ChunkIndex chunk, Kind kind) { return 2 * chunk.value + kind; }

Verdict Fault(FaultCode code, Chunk* chunk = nullptr, RackIndex other = {}) {
  return {Step::kFault, code, chunk, other};
}

// Over the wire's bytes: ranks of different racks never see each other's records.
std::uint64_t HashOf(const wire::HyperParameters& values) {
  std::array<std::byte, wire::kHyperParametersBytes> bytes;
  wire::EncodeHyperParameters(values, bytes);
  return Fnv1a(bytes);
}

RoundTerms OwnTerms(const Chunk& chunk) {
  RoundTerms terms;
  terms.record = chunk.record;
  terms.record_hash = HashOf(chunk.key->ValuesOf(chunk.record));
  terms.operation = chunk.operation;
  terms.payload_type = chunk.operation == RoundOperation::kReduce
                           ? numeric::AccumulationType(chunk.key->type)
                           : chunk.payload_type;
  if (chunk.operation == RoundOperation::kAssign) terms.root = chunk.root;
  return terms;
}

RoundTerms TermsOf(const MessageHeader& header) {
  return {header.record, header.reply_address.value, header.operation, header.type, header.root};
}

// False: somebody said otherwise before.
bool TakeTerms(ChunkExchange& state, const RoundTerms& terms, RackIndex from) {
  if (state.has_terms) return state.terms == terms;
  state.has_terms = true;
  state.terms = terms;
  state.terms_from = from;
  return true;
}

std::size_t ChildIndex(const RackTree& tree, RackIndex rack) {
  std::size_t child = 0;
  while (child < tree.reduce_children.size() && tree.reduce_children[child].rack != rack) ++child;
  return child;
}

// How many bytes that child's partial has: none, if a broadcast's root is not below it.
std::uint32_t PartialBytesExpected(const JobShard& shard, const ReduceChild& child,
                                   const Chunk& chunk, const MessageHeader& header) {
  if (header.operation == RoundOperation::kReduce) return chunk.Bytes(header.type);
  const RackIndex rack{header.root.value / shard.config.world_size};
  return (child.subtree & RackBit(rack)) != 0 ? chunk.Bytes(header.type) : 0;
}

// kLoad has no place here: saved state is not brought to jobs that span racks.
bool RoundFits(const JobShard& shard, const MessageHeader& header, const KeyState& key) {
  switch (header.operation) {
    case RoundOperation::kReduce: return header.type == numeric::AccumulationType(key.type);
    case RoundOperation::kAssign:
      return header.root.value < shard.exchange->rank_count &&
             (header.type == key.type || header.type == key.parameter_type);
    case RoundOperation::kLoad: break;
  }
  return false;
}

}  // namespace

Verdict ExchangeStage::OnLocalSum(JobShard& shard, Chunk& chunk, bool has_payload) {
  ChunkExchange& state = *shard.exchange->chunks()[chunk.index.value];
  PHUB_CHECK(!state.local && !state.awaits_result, "chunk={}", chunk.index.value);
  if (chunk.operation == RoundOperation::kLoad) return Fault(FaultCode::kNoState, &chunk);
  if (!TakeTerms(state, OwnTerms(chunk), shard.exchange->plan.self)) {
    return Fault(FaultCode::kRoundMismatch, &chunk, state.terms_from);
  }
  state.local = true;
  state.has_payload = has_payload;
  return Advance(shard, chunk, state);
}

Verdict ExchangeStage::OnMessage(JobShard& shard, RackIndex from,
                                 const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  if (header.incarnation != shard.config.incarnation) return Fault(FaultCode::kWrongIncarnation);
  if (header.membership_epoch != shard.config.membership_epoch) {
    return Fault(FaultCode::kWrongEpoch);
  }
  if (header.chunk.value >= shard.exchange->chunk_count) return Fault(FaultCode::kChunkRange);
  switch (header.kind) {
    case wire::MessageKind::kGradient: return OnPartial(shard, from, message);
    case wire::MessageKind::kParameters: return OnParameters(shard, from, message);
    default: return Fault(FaultCode::kUnexpectedKind);
  }
}

Verdict ExchangeStage::OnPartial(JobShard& shard, RackIndex from,
                                 const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  ChunkExchange& state = *shard.exchange->chunks()[header.chunk.value];
  const std::size_t child = ChildIndex(*state.tree, from);
  if (child == state.tree->reduce_children.size()) return Fault(FaultCode::kNotInPlan, &chunk);
  if (header.slot.value != EntryOf(chunk.index, kPartial)) {
    return Fault(FaultCode::kSlotRange, &chunk);
  }
  const Iteration due = state.collecting(chunk.applied);
  if (header.iteration != due) {
    return Fault(header.iteration < due ? FaultCode::kStaleIteration : FaultCode::kIterationGap,
                 &chunk);
  }
  if ((state.arrived >> child & 1) != 0) return Fault(FaultCode::kSlotOccupied, &chunk);
  if (!RoundFits(shard, header, *chunk.key)) return Fault(FaultCode::kType, &chunk);
  const std::uint32_t bytes =
      PartialBytesExpected(shard, state.tree->reduce_children[child], chunk, header);
  if (header.payload_bytes != bytes) return Fault(FaultCode::kPayloadSize, &chunk);
  if (!TakeTerms(state, TermsOf(header), from)) {
    return Fault(FaultCode::kRoundMismatch, &chunk, state.terms_from);
  }
  counters_.Add(CoreCounter::partials);
  counters_.Add(CoreCounter::partial_bytes, bytes);
  state.arrived |= std::uint64_t{1} << child;
  if (bytes == 0) state.empty |= std::uint64_t{1} << child;
  // Closed until it was read: nothing may be written over it.
  shard.exchange->peers[from.value].landing[header.slot.value] = {};
  return Advance(shard, chunk, state);
}

Verdict ExchangeStage::OnParameters(JobShard& shard, RackIndex from,
                                    const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  Chunk& chunk = *shard.chunks()[header.chunk.value];
  ChunkExchange& state = *shard.exchange->chunks()[header.chunk.value];
  if (state.tree->gather_parent != from) return Fault(FaultCode::kNotInPlan, &chunk);
  if (header.slot.value != EntryOf(chunk.index, kParameters)) {
    return Fault(FaultCode::kSlotRange, &chunk);
  }
  if (!state.awaits_result || header.iteration.value != chunk.applied.value + 1) {
    return Fault(header.iteration.value <= chunk.applied.value ? FaultCode::kStaleIteration
                                                               : FaultCode::kIterationGap,
                 &chunk);
  }
  if (header.type != chunk.key->parameter_type) return Fault(FaultCode::kType, &chunk);
  if (header.payload_bytes != chunk.reply_bytes()) return Fault(FaultCode::kPayloadSize, &chunk);
  counters_.Add(CoreCounter::results);
  counters_.Add(CoreCounter::result_bytes, header.payload_bytes);
  state.awaits_result = false;
  shard.exchange->peers[from.value].landing[header.slot.value] = {};
  return {Step::kResult, FaultCode::kNone, &chunk};
}

// The partials, in the plan's order, behind the own sum; then their memory is free again.
void ExchangeStage::FoldPartials(JobShard& shard, Chunk& chunk, ChunkExchange& state) {
  const std::vector<ReduceChild>& children = state.tree->reduce_children;
  std::size_t count = 0;
  for (std::size_t child = 0; child < children.size(); ++child) {
    const std::byte* const landed = state.landing + child * state.landing_stride;
    if (state.terms.operation == RoundOperation::kReduce) {
      inputs_[count++] = landed;
    } else if ((state.empty >> child & 1) == 0) {
      std::memcpy(chunk.accumulator, landed, chunk.Bytes(state.terms.payload_type));
      state.has_payload = true;
    }
  }
  if (count > 0) {
    simd::Fold(state.terms.payload_type, chunk.key->reduction,
               {chunk.accumulator, {inputs_.data(), count}}, chunk.element_count,
               chunk.accumulator);
  }
  for (std::size_t child = 0; child < children.size(); ++child) {
    shard.exchange->peers[children[child].rack.value].landing[EntryOf(chunk.index, kPartial)] = {
        state.landing + child * state.landing_stride, state.landing_stride};
  }
}

Verdict ExchangeStage::Advance(JobShard& shard, Chunk& chunk, ChunkExchange& state) {
  const std::size_t arrived = static_cast<std::size_t>(std::popcount(state.arrived));
  if (!state.local || arrived < state.tree->reduce_children.size()) return {};
  FoldPartials(shard, chunk, state);
  state.partial_terms = state.terms;
  state.arrived = state.empty = 0;
  state.local = state.has_terms = false;
  if (!state.tree->reduce_parent) return {Step::kTotal, FaultCode::kNone, &chunk};
  state.awaits_result = true;
  PeerLane& above = shard.exchange->peers[state.tree->gather_parent->value];
  above.landing[EntryOf(chunk.index, kParameters)] = {chunk.NextParameters(), chunk.reply_bytes()};
  Send(shard, *state.tree->reduce_parent, EntryOf(chunk.index, kPartial));
  return {Step::kWaits, FaultCode::kNone, &chunk};
}

void ExchangeStage::PassOn(JobShard& shard, Chunk& chunk) {
  const ChunkExchange& state = *shard.exchange->chunks()[chunk.index.value];
  for (const RackIndex child : state.tree->gather_children) {
    Send(shard, child, EntryOf(chunk.index, kParameters));
  }
}

void ExchangeStage::Send(JobShard& shard, RackIndex to, std::uint32_t entry) {
  PeerLane& peer = shard.exchange->peers[to.value];
  if (!peer.open) return;  // its loss is a fault, and the shard only drains
  if (peer.waiting_begin == peer.waiting_end && Post(shard, peer, entry)) return;
  PHUB_CHECK(peer.waiting_end - peer.waiting_begin < peer.waiting_capacity, "rack={}", to.value);
  peer.waiting[peer.waiting_end++ & (peer.waiting_capacity - 1)] = entry;
  ++shard.exchange->waiting_count;
}

bool ExchangeStage::Post(JobShard& shard, PeerLane& peer, std::uint32_t entry) {
  const Chunk& chunk = *shard.chunks()[entry / 2];
  const ChunkExchange& state = *shard.exchange->chunks()[entry / 2];
  const bool is_partial = entry % 2 == kPartial;
  transport::SendRequest request;
  MessageHeader& header = request.header;
  header.incarnation = shard.config.incarnation;
  header.membership_epoch = shard.config.membership_epoch;
  header.chunk = chunk.index;
  header.slot = SlotIndex{entry};
  header.key = chunk.key->key;
  if (is_partial) {
    const RoundTerms& terms = state.partial_terms;
    header.kind = wire::MessageKind::kGradient;
    header.iteration = Iteration{chunk.applied.value + 1};
    header.record = terms.record;
    header.operation = terms.operation;
    header.type = terms.payload_type;
    header.root = terms.root;
    header.reply_address = SharedAddress{terms.record_hash};
    header.payload_bytes = state.has_payload ? chunk.Bytes(terms.payload_type) : 0;
    request.payload = {chunk.accumulator, header.payload_bytes};
  } else {
    header.kind = wire::MessageKind::kParameters;
    header.iteration = chunk.applied;
    header.type = chunk.key->parameter_type;
    header.payload_bytes = chunk.reply_bytes();
    request.payload = {chunk.Parameters(chunk.applied), header.payload_bytes};
  }
  request.connections = {&peer.connection, 1};
  if (transports_[peer.transport_index]->Post({&request, 1}) == 0) return false;
  counters_.Add(is_partial ? CoreCounter::partials_sent : CoreCounter::results_sent);
  counters_.Add(CoreCounter::peer_bytes_sent, header.payload_bytes);
  return true;
}

bool ExchangeStage::Flush(JobShard& shard) {
  if (shard.exchange->waiting_count == 0) return false;
  bool posted = false;
  for (PeerLane& peer : shard.exchange->peers) {
    while (peer.waiting_begin < peer.waiting_end &&
           Post(shard, peer, peer.waiting[peer.waiting_begin & (peer.waiting_capacity - 1)])) {
      ++peer.waiting_begin;
      --shard.exchange->waiting_count;
      posted = true;
    }
  }
  return posted;
}

}  // namespace phub::server::exchange
