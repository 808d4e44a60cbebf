#include "server/core/exchange/exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/simd/kernels.h"
#include "server/core/exchange/landing_entry.h"
#include "server/core/exchange/peer_window.h"
#include "server/core/kernels_in_parts.h"
#include "server/core/on_core_loop.h"

namespace phub::server::exchange {
namespace {

using wire::MessageHeader;
using wire::RoundOperation;

Verdict Fault(FaultCode code, Chunk* chunk = nullptr, RackIndex other = {}) {
  return {Step::kFault, code, chunk, other};
}

RoundTerms OwnTerms(const Chunk& chunk) {
  RoundTerms terms;
  terms.hyper_version = chunk.hyper_version;
  terms.hyper_parameters_hash = HashOf(chunk.key->ValuesOf(chunk.hyper_version));
  terms.operation = chunk.operation;
  terms.payload_type = chunk.operation == RoundOperation::kReduce
                           ? numeric::AccumulationType(chunk.key->type)
                           : chunk.payload_type;
  if (chunk.operation == RoundOperation::kAssign) terms.root = chunk.root;
  return terms;
}

RoundTerms TermsOf(const MessageHeader& header) {
  return {header.hyper_version, header.reply_address.value, header.operation, header.type,
          header.root};
}

// False: the terms contradict the first contribution of this round.
bool TakeTerms(ChunkExchange& state, const RoundTerms& terms, RackIndex from) {
  if (state.has_terms) return state.terms == terms;
  state.has_terms = true;
  state.terms = terms;
  state.terms_from = from;
  return true;
}

// The ranks of another rack may have set other values, which never come here.
ConflictSide SideOf(const ShardKey& key, const RoundTerms& terms) {
  const wire::HyperParameters& values = key.ValuesOf(terms.hyper_version);
  return {.is_known = true,
          .operation = terms.operation,
          .root = terms.root,
          .type = terms.payload_type,
          .version = terms.hyper_version,
          .has_values = HashOf(values) == terms.hyper_parameters_hash,
          .values = values,
          .values_hash = terms.hyper_parameters_hash};
}

Verdict Mismatch(JobShard& shard, Chunk& chunk, const RoundTerms& terms,
                 const ChunkExchange& state) {
  if (!shard.faulted) {
    shard.conflict = {SideOf(*chunk.key, terms), SideOf(*chunk.key, state.terms)};
  }
  return Fault(FaultCode::kRoundMismatch, &chunk, state.terms_from);
}

std::size_t ChildIndex(const RackTree& tree, RackIndex rack) {
  std::size_t child = 0;
  while (child < tree.reduce_children.size() && tree.reduce_children[child].rack != rack) ++child;
  return child;
}

// The size of that child's partial sum; 0 for kLoad, and for a broadcast whose root is not below
// the child.
std::uint32_t PartialBytesExpected(const JobShard& shard, const ReduceChild& child,
                                   const Chunk& chunk, const MessageHeader& header) {
  if (header.operation == RoundOperation::kReduce) return chunk.Bytes(header.type);
  if (header.operation == RoundOperation::kLoad) return 0;
  const RackIndex rack{header.root.value / shard.config.ranks_per_rack};
  return (child.subtree & RackBit(rack)) != 0 ? chunk.Bytes(header.type) : 0;
}

// A partial sum of a round arrives although this rack has not yet sent its message of the round
// before, so `from` cannot have that round's result:
//   - partial_waits: our partial sum was not sent, so no rack can have the result
//   - results_wait: our result was not sent to some rack. That rack's own ranks need it before they
//     push again, and all ranks have it before the last partial sum reaches the home.
// Racks below an aggregator may have received the result from another rack.
bool ComesTooSoon(const JobShard& shard, const ChunkExchange& state, RackIndex from) {
  if (state.partial_waits) return true;
  if (state.results_wait == 0) return false;
  const std::size_t arrived = static_cast<std::size_t>(std::popcount(state.arrived));
  if (!state.tree->reduce_parent && arrived + 1 == state.tree->reduce_children.size()) return true;
  const std::uint32_t racks = shard.config.ranks_of_job / shard.config.ranks_per_rack;
  return from.value < racks && (state.results_wait & RackBit(from)) != 0;
}

// Only reductions are measured, because broadcasts have payload in one rack only.
bool IsMeasured(const ChunkExchange& state, const RoundTerms& terms) {
  return state.measured && terms.operation == RoundOperation::kReduce;
}

bool RoundFits(const JobShard& shard, const MessageHeader& header, const ShardKey& key) {
  switch (header.operation) {
    case RoundOperation::kReduce: return header.type == numeric::AccumulationType(key.type);
    case RoundOperation::kAssign:
      return header.root.value < shard.exchange->rank_count &&
             (header.type == key.type || header.type == key.parameter_type);
    case RoundOperation::kLoad: return true;  // no payload
    case RoundOperation::kMove:
    case RoundOperation::kPool:
    case RoundOperation::kPoolMove: return false;  // control refuses such keys across racks
  }
  return false;
}

}  // namespace

Verdict ExchangeStage::OnLocalSum(JobShard& shard, Chunk& chunk, bool has_payload) {
  PHUB_ON_CORE_LOOP();
  ChunkExchange& state = *chunk.exchange;
  PHUB_CHECK(!state.local && !state.awaits_result, "chunk={}", chunk.index.value);
  if (!state.has_terms) NoteRound(shard, state, Part::kBegins);
  if (!TakeTerms(state, OwnTerms(chunk), shard.exchange->plan.self)) {
    return Mismatch(shard, chunk, OwnTerms(chunk), state);
  }
  state.local = true;
  state.has_payload = has_payload;
  if (IsMeasured(state, state.terms)) {
    Measure(shard, state, ExchangeSpan::kWhole, Part::kBegins);
    if (!state.tree->reduce_children.empty()) {
      Measure(shard, state, ExchangeSpan::kSums, Part::kBegins);
    }
  }
  NotePart(shard, state, shard.exchange->plan.self);
  return Advance(shard, chunk, state);
}

void ExchangeStage::Measure(JobShard& shard, const ChunkExchange& state, ExchangeSpan span,
                            Part part) {
  ExchangeMetrics& metrics = shard.exchange->metrics;
  for (const std::size_t place : {std::size_t{0}, std::size_t{1} + state.tree_index}) {
    SpanMeter& meter = metrics.trees[place][span];
    part == Part::kBegins ? meter.Begin(now_) : meter.End(now_, state.partial_bytes);
  }
}

// The first part of a chunk's sum is here, or its result goes on.
void ExchangeStage::NoteRound(JobShard& shard, const ChunkExchange& state, Part part) {
  ClassActivity& activity = shard.exchange->activity;
  const std::size_t level = state.chunk->key->level;
  part == Part::kBegins ? activity.BeginRound(level, state.partial_bytes, now_)
                        : activity.EndRound(level, state.partial_bytes);
}

void ExchangeStage::NoteArrived(JobShard& shard, const Chunk& chunk, std::uint32_t bytes) {
  shard.exchange->activity.NoteMoved(chunk.key->level, now_);
  NoteReceived(*shard.exchange, chunk.key->level, UnitsOf(bytes));
}

// A part of the sum has arrived, from the own ranks or a child. The sum waited for the last part.
void ExchangeStage::NotePart(JobShard& shard, ChunkExchange& state, RackIndex from) {
  if (!IsMeasured(state, state.terms)) return;
  const bool aggregates = shard.exchange->plan.aggregates;
  const std::size_t parts = state.tree->reduce_children.size() + (aggregates ? 0 : 1);
  const std::size_t here =
      static_cast<std::size_t>(std::popcount(state.arrived)) + (state.local ? 1 : 0);
  if (aggregates && here == 1) Measure(shard, state, ExchangeSpan::kSums, Part::kBegins);
  if (here + 1 == parts) state.alone_since = now_;
  if (here < parts || parts == 1) return;
  // Own ranks push only after they have the last round's result.
  const bool own = from == shard.exchange->plan.self;
  const TimeNs since = own ? std::max(state.alone_since, state.result_ready_at) : state.alone_since;
  LinkMetrics& link = shard.exchange->metrics.links[from.value];
  link.sums_last.Add();
  link.sums_awaited_ns.Add(static_cast<std::uint64_t>(now_ - since));
}

Verdict ExchangeStage::OnMessage(JobShard& shard, RackIndex from,
                                 const transport::ReceivedMessage& message) {
  PHUB_ON_CORE_LOOP();
  const MessageHeader& header = message.header;
  if (header.incarnation != shard.config.incarnation) return Fault(FaultCode::kWrongIncarnation);
  if (header.membership_epoch != shard.config.membership_epoch) {
    return Fault(FaultCode::kWrongEpoch);
  }
  if (shard.exchange->Find(header.chunk.value) == nullptr) return Fault(FaultCode::kChunkRange);
  switch (header.kind) {
    case wire::MessageKind::kGradient: return OnPartial(shard, from, message);
    case wire::MessageKind::kParameters: return OnParameters(shard, from, message);
    default: return Fault(FaultCode::kUnexpectedKind);
  }
}

Verdict ExchangeStage::OnPartial(JobShard& shard, RackIndex from,
                                 const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  ChunkExchange& state = *shard.exchange->chunks()[header.chunk.value];
  Chunk& chunk = *state.chunk;
  const std::size_t child = ChildIndex(*state.tree, from);
  if (child == state.tree->reduce_children.size()) return Fault(FaultCode::kNotInPlan, &chunk);
  if (header.slot.value != EntryOf(state.number, EntryKind::kPartial)) {
    return Fault(FaultCode::kSlotRange, &chunk);
  }
  const Iteration due = shard.exchange->plan.aggregates ? Iteration{state.summed.value + 1}
                                                        : state.collecting(chunk.applied);
  if (header.iteration != due) {
    return Fault(header.iteration < due ? FaultCode::kStaleIteration : FaultCode::kIterationGap,
                 &chunk);
  }
  if ((state.arrived >> child & 1) != 0) return Fault(FaultCode::kSlotOccupied, &chunk);
  if (ComesTooSoon(shard, state, from)) return Fault(FaultCode::kIterationGap, &chunk);
  if (!RoundFits(shard, header, *chunk.key)) return Fault(FaultCode::kType, &chunk);
  const std::uint32_t bytes =
      PartialBytesExpected(shard, state.tree->reduce_children[child], chunk, header);
  if (header.payload_bytes != bytes) return Fault(FaultCode::kPayloadSize, &chunk);
  if (!state.has_terms) NoteRound(shard, state, Part::kBegins);
  if (!TakeTerms(state, TermsOf(header), from)) {
    return Mismatch(shard, chunk, TermsOf(header), state);
  }
  NoteArrived(shard, chunk, bytes);
  counters_.Add(CoreCounter::partials);
  counters_.Add(CoreCounter::partial_bytes, bytes);
  LinkMetrics& link = shard.exchange->metrics.links[from.value];
  link.partials_received.Add();
  link.partial_bytes_received.Add(bytes);
  shard.CountMemory(MemoryWork::kLanding, {.written = bytes});
  state.arrived |= std::uint64_t{1} << child;
  if (bytes == 0) state.empty |= std::uint64_t{1} << child;
  // Close the slot until the partial sum is read, so that nothing overwrites it.
  shard.exchange->peers[from.value].landing[header.slot.value] = {};
  NotePart(shard, state, from);
  return Advance(shard, chunk, state);
}

Verdict ExchangeStage::OnParameters(JobShard& shard, RackIndex from,
                                    const transport::ReceivedMessage& message) {
  const MessageHeader& header = message.header;
  ChunkExchange& state = *shard.exchange->chunks()[header.chunk.value];
  Chunk& chunk = *state.chunk;
  if (state.tree->gather_parent != from) return Fault(FaultCode::kNotInPlan, &chunk);
  if (header.slot.value != EntryOf(state.number, EntryKind::kParameters)) {
    return Fault(FaultCode::kSlotRange, &chunk);
  }
  const bool aggregates = shard.exchange->plan.aggregates;
  const bool is_due = aggregates || state.awaits_result;
  if (!is_due || header.iteration.value != chunk.applied.value + 1) {
    return Fault(header.iteration.value <= chunk.applied.value ? FaultCode::kStaleIteration
                                                               : FaultCode::kIterationGap,
                 &chunk);
  }
  // The result contains every rack's part, and every rack below had the last result, so none of our
  // messages can still wait. An aggregator's partial sum may belong to the next round.
  if (state.results_wait != 0 || (state.partial_waits && !aggregates)) {
    return Fault(FaultCode::kIterationGap, &chunk);
  }
  if (header.type != chunk.key->parameter_type) return Fault(FaultCode::kType, &chunk);
  if (header.payload_bytes != chunk.reply_bytes()) return Fault(FaultCode::kPayloadSize, &chunk);
  NoteArrived(shard, chunk, header.payload_bytes);
  counters_.Add(CoreCounter::results);
  counters_.Add(CoreCounter::result_bytes, header.payload_bytes);
  LinkMetrics& link = shard.exchange->metrics.links[from.value];
  link.results_received.Add();
  link.result_bytes_received.Add(header.payload_bytes);
  shard.CountMemory(MemoryWork::kLanding, {.written = header.payload_bytes});
  if (!aggregates || state.summed == header.iteration) {
    link.result_wait_ns.Add(static_cast<std::uint64_t>(now_ - state.partial_ready_at));
  }
  if (IsMeasured(state, state.partial_terms) && !aggregates) {
    Measure(shard, state, ExchangeSpan::kResult, Part::kEnds);
  }
  state.awaits_result = false;
  shard.exchange->peers[from.value].landing[header.slot.value] = {};
  return {Step::kResult, FaultCode::kNone, &chunk};
}

// Folds the own sum and then the partial sums in the plan's order. Afterwards their slots are open.
void ExchangeStage::FoldPartials(JobShard& shard, Chunk& chunk, ChunkExchange& state) {
  const std::vector<ReduceChild>& children = state.tree->reduce_children;
  std::size_t count = 0;
  for (std::size_t child = 0; child < children.size(); ++child) {
    const std::byte* const landed = state.landing + child * state.landing_stride;
    if (state.terms.operation == RoundOperation::kReduce) {
      inputs_[count++] = landed;
    } else if ((state.empty >> child & 1) == 0) {
      const std::uint32_t bytes = chunk.Bytes(state.terms.payload_type);
      std::memcpy(chunk.accumulator, landed, bytes);
      shard.CountMemory(MemoryWork::kCopies, {.read = bytes, .written = bytes});
      state.has_payload = true;
    }
  }
  if (count > 0) {
    const std::byte* const own = shard.exchange->plan.aggregates ? nullptr : chunk.accumulator;
    FoldInParts(shard.long_work, state.terms.payload_type, chunk.key->reduction,
                {own, {inputs_.data(), count}}, chunk.element_count, chunk.accumulator);
    const std::uint64_t bytes = chunk.Bytes(state.terms.payload_type);
    shard.CountMemory(MemoryWork::kSums,
                      {.read = (count + (own != nullptr ? 1 : 0)) * bytes, .written = bytes});
  }
  for (std::size_t child = 0; child < children.size(); ++child) {
    shard.exchange->peers[children[child].rack.value]
        .landing[EntryOf(state.number, EntryKind::kPartial)] = {
        state.landing + child * state.landing_stride, state.landing_stride};
  }
}

Verdict ExchangeStage::Advance(JobShard& shard, Chunk& chunk, ChunkExchange& state) {
  const bool aggregates = shard.exchange->plan.aggregates;
  const std::size_t arrived = static_cast<std::size_t>(std::popcount(state.arrived));
  if (!(state.local || aggregates) || arrived < state.tree->reduce_children.size()) return {};
  if (aggregates) state.has_payload = state.terms.operation == RoundOperation::kReduce;
  FoldPartials(shard, chunk, state);
  const bool measured = IsMeasured(state, state.terms);
  if (measured && arrived > 0) Measure(shard, state, ExchangeSpan::kSums, Part::kEnds);
  state.partial_terms = state.terms;
  state.arrived = state.empty = 0;
  state.local = state.has_terms = false;
  if (!state.tree->reduce_parent) return {Step::kTotal, FaultCode::kNone, &chunk};
  return SendUp(shard, chunk, state);
}

Verdict ExchangeStage::SendUp(JobShard& shard, Chunk& chunk, ChunkExchange& state) {
  state.partial_ready_at = now_;
  if (shard.exchange->plan.aggregates) {
    ++state.summed.value;
    NoteRound(shard, state, Part::kEnds);
  } else {
    state.awaits_result = true;
    if (IsMeasured(state, state.partial_terms)) {
      Measure(shard, state, ExchangeSpan::kResult, Part::kBegins);
    }
    PeerLane& above = shard.exchange->peers[state.tree->gather_parent->value];
    above.landing[EntryOf(state.number, EntryKind::kParameters)] = {chunk.NextParameters(),
                                                                    chunk.reply_bytes()};
  }
  Send(shard, *state.tree->reduce_parent, EntryOf(state.number, EntryKind::kPartial));
  return {Step::kWaits, FaultCode::kNone, &chunk};
}

void ExchangeStage::PassOn(JobShard& shard, Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  ChunkExchange& state = *chunk.exchange;
  state.result_ready_at = now_;
  if (shard.exchange->plan.aggregates) {
    // The next result arrives only after every rack below has received this one.
    PeerLane& above = shard.exchange->peers[state.tree->gather_parent->value];
    above.landing[EntryOf(state.number, EntryKind::kParameters)] = {chunk.NextParameters(),
                                                                    chunk.reply_bytes()};
  } else {
    NoteRound(shard, state, Part::kEnds);
    if (IsMeasured(state, state.partial_terms)) {
      Measure(shard, state, ExchangeSpan::kWhole, Part::kEnds);
    }
  }
  for (const RackIndex child : state.tree->gather_children) {
    Send(shard, child, EntryOf(state.number, EntryKind::kParameters));
  }
}

}  // namespace phub::server::exchange
