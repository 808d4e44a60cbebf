// Sends messages to peer racks, those of higher priority classes first, and queues those that find
// no room. Part of ExchangeStage.
#include <algorithm>

#include "common/base/check.h"
#include "server/core/exchange/exchange.h"
#include "server/core/exchange/landing_entry.h"
#include "server/core/exchange/peer_window.h"
#include "server/core/on_core_loop.h"

namespace phub::server::exchange {
namespace {

std::size_t LevelOf(const ShardExchange& exchange, std::uint32_t entry) {
  return exchange.chunks()[NumberOf(entry)]->chunk->key->level;
}

std::uint32_t PayloadBytes(const ChunkExchange& state, std::uint32_t entry) {
  const Chunk& chunk = *state.chunk;
  if (KindOf(entry) == EntryKind::kParameters) return chunk.reply_bytes();
  return state.has_payload ? chunk.Bytes(state.partial_terms.payload_type) : 0;
}

}  // namespace

void ExchangeStage::Send(JobShard& shard, RackIndex to, std::uint32_t entry) {
  PeerLane& peer = shard.exchange->peers[to.value];
  if (!peer.open) return;  // the loss of the lane is a fault, so the shard only drains
  const std::size_t level = LevelOf(*shard.exchange, entry);
  WaitingMessages& waiting = peer.waiting[level];
  if (waiting.begin == waiting.end && HasWindow(*shard.exchange, peer, level, now_) &&
      Post(shard, to, entry)) {
    PostDue(shard);
    return;
  }
  PHUB_CHECK(waiting.end - waiting.begin < peer.waiting_capacity, "rack={}", to.value);
  waiting.ring[waiting.end++ & (peer.waiting_capacity - 1)] = entry;
  NoteWaiting(*shard.exchange, level);
  NoteWaits(shard, to, entry, true);
}

void ExchangeStage::NoteWaits(JobShard& shard, RackIndex to, std::uint32_t entry, bool waits) {
  ChunkExchange& state = *shard.exchange->chunks()[NumberOf(entry)];
  if (KindOf(entry) == EntryKind::kPartial) {
    state.partial_waits = waits;
  } else if (waits) {
    state.results_wait |= RackBit(to);
  } else {
    state.results_wait &= ~RackBit(to);
  }
}

bool ExchangeStage::Post(JobShard& shard, RackIndex to, std::uint32_t entry) {
  PeerLane& peer = shard.exchange->peers[to.value];
  const ChunkExchange& state = *shard.exchange->chunks()[NumberOf(entry)];
  const Chunk& chunk = *state.chunk;
  const bool is_partial = KindOf(entry) == EntryKind::kPartial;
  transport::SendRequest request;
  wire::MessageHeader& header = request.header;
  header.incarnation = shard.config.incarnation;
  header.membership_epoch = shard.config.membership_epoch;
  header.chunk = ChunkIndex{state.number};
  header.slot = SlotIndex{entry};
  header.key = chunk.key->key;
  header.payload_bytes = PayloadBytes(state, entry);
  if (is_partial) {
    const RoundTerms& terms = state.partial_terms;
    header.kind = wire::MessageKind::kGradient;
    header.iteration =
        shard.exchange->plan.aggregates ? state.summed : Iteration{chunk.applied.value + 1};
    header.hyper_version = terms.hyper_version;
    header.operation = terms.operation;
    header.type = terms.payload_type;
    header.root = terms.root;
    header.reply_address = SharedAddress{terms.hyper_parameters_hash};
    request.payload = {chunk.accumulator, header.payload_bytes};
  } else {
    header.kind = wire::MessageKind::kParameters;
    header.iteration = chunk.applied;
    header.type = chunk.key->parameter_type;
    request.payload = {chunk.Parameters(chunk.applied), header.payload_bytes};
  }
  request.connections = {&peer.connection, 1};
  request.notify_sent = true;
  const std::uint64_t units = UnitsOf(header.payload_bytes);
  request.cookie = CookieOf(is_partial ? state.partial_ready_at : state.result_ready_at, units,
                            chunk.key->level);
  if (transports_[peer.transport_index]->Post({&request, 1}) == 0) return false;
  if (LowerWaits(*shard.exchange, chunk.key->level)) counters_.Add(CoreCounter::peer_overtakes);
  NotePosted(*shard.exchange, peer, chunk.key->level, units);
  shard.exchange->activity.NoteMoved(chunk.key->level, now_);
  counters_.Add(is_partial ? CoreCounter::partials_sent : CoreCounter::results_sent);
  counters_.Add(CoreCounter::peer_bytes_sent, header.payload_bytes);
  LinkMetrics& link = shard.exchange->metrics.links[to.value];
  (is_partial ? link.partials_sent : link.results_sent).Add();
  (is_partial ? link.partial_bytes_sent : link.result_bytes_sent).Add(header.payload_bytes);
  shard.CountMemory(MemoryWork::kSending, {.read = header.payload_bytes});
  return true;
}

void ExchangeStage::OnSent(JobShard& shard, RackIndex to, std::uint64_t cookie) {
  PHUB_ON_CORE_LOOP();
  PeerLane& peer = shard.exchange->peers[to.value];
  const SentMessage sent = SentOf(cookie, now_);
  PHUB_CHECK(
      peer.posted > 0 && sent.level < kPriorityLevels && peer.posted_at[sent.level] >= sent.units,
      "rack={} level={} units={}", to.value, sent.level, sent.units);
  NoteSent(*shard.exchange, peer, sent.level, sent.units);
  shard.exchange->activity.NoteMoved(sent.level, now_);
  LinkMetrics& link = shard.exchange->metrics.links[to.value];
  link.messages_taken.Add();
  link.message_wait_ns.Add(static_cast<std::uint64_t>(sent.waited));
}

// Posts the first message that waits for that lane at that level. REQUIRES: one waits.
bool ExchangeStage::PostWaiting(JobShard& shard, RackIndex to, std::size_t level) {
  PeerLane& peer = shard.exchange->peers[to.value];
  WaitingMessages& waiting = peer.waiting[level];
  const std::uint32_t entry = waiting.ring[waiting.begin & (peer.waiting_capacity - 1)];
  if (!Post(shard, to, entry)) return false;
  ++waiting.begin;
  NoteNotWaiting(*shard.exchange, level);
  NoteWaits(shard, to, entry, false);
  return true;
}

// Posts the messages of lower levels that are due.
bool ExchangeStage::PostDue(JobShard& shard) {
  ShardExchange& exchange = *shard.exchange;
  bool posted = false;
  for (std::size_t level = 0; level < exchange.top_level; ++level) {
    const std::uint32_t first = exchange.next_due;
    for (std::uint32_t i = 0; i < exchange.plan.rack_count && exchange.waiting_at[level] > 0; ++i) {
      const RackIndex rack{(first + i) % exchange.plan.rack_count};
      PeerLane& peer = exchange.peers[rack.value];
      const WaitingMessages& waiting = peer.waiting[level];
      if (waiting.begin == waiting.end) continue;
      const std::uint32_t entry = waiting.ring[waiting.begin & (peer.waiting_capacity - 1)];
      const ChunkExchange& state = *exchange.chunks()[NumberOf(entry)];
      const std::uint64_t units = UnitsOf(PayloadBytes(state, entry));
      if (!IsDue(exchange, peer, level, units) || !PostWaiting(shard, rack, level)) continue;
      exchange.next_due = rack.value + 1;
      posted = true;
    }
  }
  return posted;
}

bool ExchangeStage::Flush(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  ShardExchange& exchange = *shard.exchange;
  if (exchange.waiting_count == 0) return false;
  bool posted = PostDue(shard);
  for (std::size_t level = kPriorityLevels; level-- > 0;) {
    const std::uint32_t first = exchange.next_flushed;
    for (std::uint32_t i = 0; i < exchange.plan.rack_count; ++i) {
      if (exchange.waiting_at[level] == 0) break;
      const std::uint32_t rack = (first + i) % exchange.plan.rack_count;
      PeerLane& peer = exchange.peers[rack];
      const WaitingMessages& waiting = peer.waiting[level];
      while (waiting.begin < waiting.end && HasWindow(exchange, peer, level, now_) &&
             PostWaiting(shard, RackIndex{rack}, level)) {
        posted = true;
        exchange.next_flushed = rack + 1;
        PostDue(shard);
      }
    }
  }
  next_ = std::min(next_, NextWindow(exchange, now_, kNever));
  return posted;
}

}  // namespace phub::server::exchange
