#include "server/core/exchange/exchange_invariants.h"

#include <bit>

#include "common/base/check.h"

namespace phub::server::exchange {
namespace {

bool IsOpen(const ShardExchange& exchange, RackIndex rack, std::uint32_t entry) {
  return exchange.peers[rack.value].landing[entry].data != nullptr;
}

// E1, E2: a landing slot is open exactly while its message is due.
void CheckLanding(const JobShard& shard, const ChunkExchange& state) {
  const std::uint32_t chunk = state.number;
  const ShardExchange& exchange = *shard.exchange;
  const std::vector<ReduceChild>& children = state.tree->reduce_children;
  for (std::size_t child = 0; child < children.size(); ++child) {
    const bool arrived = (state.arrived >> child & 1) != 0;
    PHUB_CHECK(IsOpen(exchange, children[child].rack, 2 * chunk) == !arrived,
               "E1 chunk={} child={} arrived={}", chunk, child, arrived);
  }
  if (!state.tree->gather_parent) return;
  const bool due = exchange.plan.aggregates || state.awaits_result;
  PHUB_CHECK(IsOpen(exchange, *state.tree->gather_parent, 2 * chunk + 1) == due,
             "E2 chunk={} due={}", chunk, due);
}

}  // namespace

void CheckExchange(const JobShard& shard, const Chunk& chunk) {
  if (chunk.exchange == nullptr) return;
  const ShardExchange& exchange = *shard.exchange;
  const ChunkExchange& state = *chunk.exchange;
  const ChunkIndex index = chunk.index;
  PHUB_CHECK(state.chunk == &chunk && exchange.Find(state.number) == &state,
             "E9 chunk={} number={}", index.value, state.number);
  const std::size_t children = state.tree->reduce_children.size();
  PHUB_CHECK(children == 64 || state.arrived >> children == 0, "E3 chunk={} arrived={:x}",
             index.value, state.arrived);
  PHUB_CHECK((state.empty & ~state.arrived) == 0, "E3 chunk={} empty={:x}", index.value,
             state.empty);
  PHUB_CHECK(!(state.local && state.awaits_result), "E4 chunk={}", index.value);
  PHUB_CHECK(!(state.local || state.awaits_result) || chunk.folded_count == chunk.member_count,
             "E4 chunk={} folded={}", index.value, chunk.folded_count);
  PHUB_CHECK(!exchange.plan.aggregates || !(state.local || state.awaits_result), "E4 chunk={}",
             index.value);
  PHUB_CHECK(chunk.is_home == (state.tree->home == exchange.plan.self), "E4 chunk={}", index.value);
  if (!shard.live()) return;  // a fault may have left a round in an intermediate state
  PHUB_CHECK(state.has_terms == (state.local || state.arrived != 0), "E5 chunk={} terms={}",
             index.value, state.has_terms);
  const bool has_all = static_cast<std::size_t>(std::popcount(state.arrived)) == children;
  PHUB_CHECK(!(state.local && has_all), "E6 chunk={}", index.value);
  CheckLanding(shard, state);
}

void CheckExchanges(const JobShard& shard) {
  const ShardExchange& exchange = *shard.exchange;
  for (std::uint32_t i = 0; i < exchange.chunk_count; ++i)
    CheckExchange(shard, *exchange.chunks()[i]->chunk);
  for (std::uint32_t i = kGroupNumbersFirst; i < kGroupNumbersFirst + exchange.group_end; ++i)
    if (const ChunkExchange* const state = exchange.Find(i)) CheckExchange(shard, *state->chunk);
  std::uint64_t waiting = 0;
  for (std::uint32_t rack = 0; rack < exchange.plan.rack_count; ++rack) {
    const PeerLane& peer = exchange.peers[rack];
    const std::uint64_t count = peer.waiting_end - peer.waiting_begin;
    PHUB_CHECK(count <= peer.waiting_capacity, "E7 rack={} waiting={}", rack, count);
    PHUB_CHECK(count == 0 || peer.open, "E7 rack={} waiting={}", rack, count);
    waiting += count;
    for (std::uint64_t at = peer.waiting_begin; at < peer.waiting_end; ++at) {
      const std::uint32_t entry = peer.waiting[at & (peer.waiting_capacity - 1)];
      const ChunkExchange& state = *exchange.chunks()[entry / 2];
      const bool noted = entry % 2 == 0 ? state.partial_waits
                                        : (state.results_wait & RackBit(RackIndex{rack})) != 0;
      PHUB_CHECK(noted, "E8 rack={} entry={}", rack, entry);
    }
  }
  PHUB_CHECK(waiting == exchange.waiting_count, "E7 waiting={} counted={}", waiting,
             exchange.waiting_count);
}

}  // namespace phub::server::exchange
