// Sends messages to peer racks and queues those that find their lane full. Part of ExchangeStage.
#include "common/base/check.h"
#include "server/core/exchange/exchange.h"
#include "server/core/exchange/landing_entry.h"
#include "server/core/on_core_loop.h"

namespace phub::server::exchange {

void ExchangeStage::Send(JobShard& shard, RackIndex to, std::uint32_t entry) {
  PeerLane& peer = shard.exchange->peers[to.value];
  if (!peer.open) return;  // the loss of the lane is a fault, so the shard only drains
  if (peer.waiting_begin == peer.waiting_end && Post(shard, to, entry)) return;
  PHUB_CHECK(peer.waiting_end - peer.waiting_begin < peer.waiting_capacity, "rack={}", to.value);
  peer.waiting[peer.waiting_end++ & (peer.waiting_capacity - 1)] = entry;
  ++shard.exchange->waiting_count;
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
  const PeerLane& peer = shard.exchange->peers[to.value];
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
  request.notify_sent = true;
  request.cookie =
      static_cast<std::uint64_t>(is_partial ? state.partial_ready_at : state.result_ready_at);
  if (transports_[peer.transport_index]->Post({&request, 1}) == 0) return false;
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
  LinkMetrics& link = shard.exchange->metrics.links[to.value];
  link.messages_taken.Add();
  link.message_wait_ns.Add(static_cast<std::uint64_t>(now_ - static_cast<TimeNs>(cookie)));
}

bool ExchangeStage::Flush(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  if (shard.exchange->waiting_count == 0) return false;
  bool posted = false;
  for (std::uint32_t rack = 0; rack < shard.exchange->plan.rack_count; ++rack) {
    PeerLane& peer = shard.exchange->peers[rack];
    while (peer.waiting_begin < peer.waiting_end) {
      const std::uint32_t entry = peer.waiting[peer.waiting_begin & (peer.waiting_capacity - 1)];
      if (!Post(shard, RackIndex{rack}, entry)) break;
      ++peer.waiting_begin;
      --shard.exchange->waiting_count;
      NoteWaits(shard, RackIndex{rack}, entry, false);
      posted = true;
    }
  }
  return posted;
}

}  // namespace phub::server::exchange
