#include "server/core/exchange/exchange_invariants.h"

#include <array>
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

// E8: the messages that wait for that lane at that level are noted, and are of that level.
void CheckWaiting(const ShardExchange& exchange, RackIndex rack, std::size_t level) {
  const PeerLane& peer = exchange.peers[rack.value];
  const WaitingMessages& waiting = peer.waiting[level];
  for (std::uint64_t at = waiting.begin; at < waiting.end; ++at) {
    const std::uint32_t entry = waiting.ring[at & (peer.waiting_capacity - 1)];
    const ChunkExchange& state = *exchange.chunks()[entry / 2];
    const bool noted =
        entry % 2 == 0 ? state.partial_waits : (state.results_wait & RackBit(rack)) != 0;
    PHUB_CHECK(noted && state.chunk->key->level == level, "E8 rack={} entry={} level={}",
               rack.value, entry, level);
  }
}

// E10: the rounds in progress of each level are counted. A chunk may have two, see collecting().
std::uint64_t BytesInProgress(const ChunkExchange& state) {
  return (std::uint64_t{state.has_terms} + state.awaits_result) * state.partial_bytes;
}

// E7: the counts of messages of a level match, and are bounded.
void CheckMessages(const ShardExchange& exchange, std::size_t level) {
  std::uint64_t waiting = 0, posted = 0;
  for (std::uint32_t rack = 0; rack < exchange.plan.rack_count; ++rack) {
    const PeerLane& peer = exchange.peers[rack];
    const std::uint64_t count = peer.waiting[level].end - peer.waiting[level].begin;
    PHUB_CHECK(count <= peer.waiting_capacity, "E7 rack={} waiting={}", rack, count);
    PHUB_CHECK(peer.open || (count == 0 && peer.posted_at[level] == 0),
               "E7 rack={} waiting={} posted={}", rack, count, peer.posted_at[level]);
    waiting += count;
    posted += peer.posted_at[level];
    CheckWaiting(exchange, RackIndex{rack}, level);
  }
  PHUB_CHECK(waiting == exchange.waiting_at[level], "E7 level={} waiting={} counted={}", level,
             waiting, exchange.waiting_at[level]);
  PHUB_CHECK(posted == exchange.posted_at[level], "E7 level={} posted={} counted={}", level, posted,
             exchange.posted_at[level]);
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
  std::array<std::uint64_t, kPriorityLevels> bytes{};
  const auto check = [&](const ChunkExchange& state) {
    CheckExchange(shard, *state.chunk);
    bytes[state.chunk->key->level] += BytesInProgress(state);
  };
  for (std::uint32_t i = 0; i < exchange.chunk_count; ++i) check(*exchange.chunks()[i]);
  for (std::uint32_t i = kGroupNumbersFirst; i < kGroupNumbersFirst + exchange.group_end; ++i)
    if (const ChunkExchange* const state = exchange.Find(i)) check(*state);
  for (std::size_t level = 0; level < kPriorityLevels && shard.live(); ++level)
    PHUB_CHECK(bytes[level] == exchange.activity.bytes(level), "E10 level={} bytes={} counted={}",
               level, bytes[level], exchange.activity.bytes(level));
  for (std::size_t level = 0; level < kPriorityLevels; ++level) CheckMessages(exchange, level);
  std::uint32_t waiting = 0;
  for (const std::uint32_t at_level : exchange.waiting_at) waiting += at_level;
  PHUB_CHECK(waiting == exchange.waiting_count, "E7 waiting={} counted={}", waiting,
             exchange.waiting_count);
}

}  // namespace phub::server::exchange
