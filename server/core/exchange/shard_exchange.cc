#include "server/core/exchange/shard_exchange.h"

#include <algorithm>
#include <array>

#include "common/base/align.h"
#include "common/base/check.h"
#include "common/base/fnv1a.h"
#include "server/core/exchange/landing_entry.h"
#include "server/core/exchange/peer_window.h"

namespace phub::server::exchange {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::uint32_t kNumbersMax = 2 * kChunksPerShardMax;  // the job's, then those of groups
constexpr std::uint32_t kSlotsPerTable = 2 * kNumbersMax;
static_assert((kSlotsPerTable & (kSlotsPerTable - 1)) == 0, "the ring needs a power of two");

// Calls visit(index of its tree, bytes of a partial sum) for each chunk, in order. Partial sums are
// sent in the accumulation type, the widest type on the wire. Trees are chosen by the memory that
// partial sums need.
template <typename Visit>
void ForEachChunk(std::span<const KeyShardSpec> keys, TreeChooser& chooser, Visit&& visit) {
  for (const KeyShardSpec& key : keys) {
    for (const KeyShardSpec::ChunkSpec& chunk : key.chunks) {
      const std::size_t bytes = std::size_t{chunk.element_count} *
                                numeric::ElementBytes(numeric::AccumulationType(key.type));
      visit(chooser.Next(AlignUp(bytes, kAlignment)), bytes);
    }
  }
}

// Adds the chunk's bytes to the meters of the stages that it will pass.
void ExtendSpans(const RackPlan& plan, ExchangeMetrics& metrics, const ChunkExchange& chunk) {
  metrics.exchange_bytes.Add(chunk.partial_bytes);
  for (SpanMeters* const meters :
       {&metrics.trees[0], &metrics.trees[std::size_t{1} + chunk.tree_index]}) {
    if (!plan.aggregates) (*meters)[ExchangeSpan::kWhole].Extend(chunk.partial_bytes);
    if (!chunk.tree->reduce_children.empty()) {
      (*meters)[ExchangeSpan::kSums].Extend(chunk.partial_bytes);
    }
    if (chunk.tree->reduce_parent && !plan.aggregates) {
      (*meters)[ExchangeSpan::kResult].Extend(chunk.partial_bytes);
    }
  }
}

void NumberChunks(ShardExchange& exchange, ExchangeBatch& batch) {
  const auto count = static_cast<std::uint32_t>(batch.chunks.size());
  const std::uint32_t first = batch.first_number.value_or(exchange.chunk_count);
  std::uint32_t& end = batch.first_number ? exchange.group_end : exchange.chunk_count;
  const std::uint32_t before = batch.first_number ? first - kGroupNumbersFirst : first;
  PHUB_CHECK(before <= kChunksPerShardMax && count <= kChunksPerShardMax - before, "first={}",
             first);
  end = std::max(end, before + count);
  for (std::uint32_t i = 0; i < count; ++i) {
    ChunkExchange& chunk = batch.chunks[i];
    chunk.number = first + i;
    PHUB_CHECK(exchange.chunks()[chunk.number] == nullptr, "number={}", chunk.number);
    exchange.chunks()[chunk.number] = &chunk;
    if (chunk.measured) ExtendSpans(exchange.plan, exchange.metrics, chunk);
    NoteChunkAdded(exchange, chunk.chunk->key->level);
  }
}

std::uint32_t EndOf(const ShardExchange& exchange) {
  return exchange.group_end > 0 ? kGroupNumbersFirst + exchange.group_end : exchange.chunk_count;
}

std::size_t LandingBytes(const RackPlan& plan, std::span<const KeyShardSpec> keys,
                         TreeChooser chooser, std::size_t& chunk_count) {
  std::size_t total = 0;
  ForEachChunk(keys, chooser, [&](std::uint32_t tree, std::size_t bytes) {
    total += plan.trees[tree].reduce_children.size() * AlignUp(bytes, kAlignment);
    ++chunk_count;
  });
  return total;
}

}  // namespace

std::uint64_t HashOf(const wire::HyperParameters& values) {
  std::array<std::byte, wire::kHyperParametersBytes> bytes;
  wire::EncodeHyperParameters(values, bytes);
  return Fnv1a(bytes);
}

std::unique_ptr<ShardExchange> MakeShardExchange(RackPlan plan, std::uint32_t rank_count) {
  using Backing = MappedMemory::Backing;
  auto made = std::make_unique<ShardExchange>();
  const std::size_t racks = plan.rack_count;
  made->plan = std::move(plan);
  made->rank_count = rank_count;
  made->next_flushed = made->next_due = made->plan.self.value + 1;
  made->peers.resize(racks);
  made->metrics.trees = std::make_unique<SpanMeters[]>(1 + made->plan.trees.size());
  made->metrics.links = std::make_unique<LinkMetrics[]>(racks);
  made->chunk_table =
      MappedMemory::Allocate(std::size_t{kNumbersMax} * sizeof(ChunkExchange*), Backing::kOnTouch);
  made->landing_tables = MappedMemory::Allocate(
      racks * kSlotsPerTable * sizeof(transport::LandingSlot), Backing::kOnTouch);
  made->waiting_rings = MappedMemory::Allocate(
      racks * kPriorityLevels * kSlotsPerTable * sizeof(std::uint32_t), Backing::kOnTouch);
  if (!made->chunk_table || !made->landing_tables || !made->waiting_rings) return nullptr;
  auto* ring = reinterpret_cast<std::uint32_t*>(made->waiting_rings.data());
  for (PeerLane& peer : made->peers) {
    peer.waiting_capacity = kSlotsPerTable;
    for (WaitingMessages& waiting : peer.waiting) {
      waiting.ring = ring;
      ring += kSlotsPerTable;
    }
  }
  return made;
}

std::unique_ptr<ExchangeBatch> MakeExchangeBatch(const ShardExchange& exchange,
                                                 std::span<const KeyShardSpec> keys,
                                                 TreeChooser& chooser, const GroupPart* group) {
  auto batch = std::make_unique<ExchangeBatch>();
  const RackPlan& plan = group == nullptr ? exchange.plan : *group->plan;
  std::size_t chunk_count = 0;
  const std::size_t bytes = LandingBytes(plan, keys, chooser, chunk_count);
  if (group != nullptr) {
    batch->first_number = group->first_number;
    batch->plan = group->plan;
  }
  batch->landing = MappedMemory::Allocate(bytes, MappedMemory::Backing::kLater);
  if (bytes > 0 && !batch->landing) return nullptr;
  batch->chunks.reserve(chunk_count);
  std::byte* next = batch->landing.data();
  ForEachChunk(keys, chooser, [&](std::uint32_t tree, std::size_t partial_bytes) {
    ChunkExchange& chunk = batch->chunks.emplace_back();
    chunk.tree_index = tree;
    chunk.tree = &plan.trees[tree];
    chunk.rank_count = group == nullptr ? exchange.rank_count : group->rank_count;
    chunk.measured = group == nullptr;
    chunk.landing = next;
    chunk.partial_bytes = static_cast<std::uint32_t>(partial_bytes);
    chunk.landing_stride = static_cast<std::uint32_t>(AlignUp(partial_bytes, kAlignment));
    next += chunk.tree->reduce_children.size() * chunk.landing_stride;
  });
  return batch;
}

std::uint64_t ShardExchangeBytes(const RackPlan& plan) {
  return sizeof(ShardExchange) + plan.rack_count * (sizeof(PeerLane) + sizeof(LinkMetrics)) +
         (1 + plan.trees.size()) * sizeof(SpanMeters) +
         plan.trees.size() * (sizeof(RackTree) + plan.rack_count * sizeof(ReduceChild));
}

std::uint64_t ExchangeBatchBytes(const RackPlan& plan, std::span<const KeyShardSpec> keys,
                                 TreeChooser chooser) {
  std::size_t chunk_count = 0;
  const std::size_t landing = LandingBytes(plan, keys, chooser, chunk_count);
  const std::size_t per_peer = 2 * (sizeof(transport::LandingSlot) + sizeof(std::uint32_t));
  return sizeof(ExchangeBatch) + landing +
         chunk_count *
             (sizeof(ChunkExchange) + sizeof(ChunkExchange*) + (plan.rack_count - 1) * per_peer);
}

void AddExchange(const ShardExchange& exchange, ExchangeBatch& batch, KeyBatch& keys) {
  PHUB_CHECK(keys.chunks.size() == batch.chunks.size());
  keys.exchange = &batch;
  for (std::size_t i = 0; i < keys.chunks.size(); ++i) {
    batch.chunks[i].chunk = &keys.chunks[i];
    keys.chunks[i].exchange = &batch.chunks[i];
    keys.chunks[i].is_home = batch.chunks[i].tree->home == exchange.plan.self;
  }
}

void LinkBatch(const JobShard& shard, ExchangeBatch& batch,
               std::span<transport::Transport* const> transports) {
  ShardExchange& exchange = *shard.exchange;
  NumberChunks(exchange, batch);
  auto* const tables = reinterpret_cast<transport::LandingSlot*>(exchange.landing_tables.data());
  for (std::uint32_t rack = 0; rack < exchange.plan.rack_count; ++rack) {
    PeerLane& peer = exchange.peers[rack];
    transport::LandingSlot* const table = tables + std::size_t{rack} * kSlotsPerTable;
    for (const ChunkExchange& chunk : batch.chunks) {
      const std::uint32_t c = chunk.number;
      table[2 * c] = table[2 * c + 1] = {};
      for (std::size_t child = 0; child < chunk.tree->reduce_children.size(); ++child) {
        if (chunk.tree->reduce_children[child].rack.value != rack) continue;
        table[2 * c] = {chunk.landing + child * chunk.landing_stride, chunk.landing_stride};
      }
      const Chunk& landed = *chunk.chunk;
      if (exchange.plan.aggregates && chunk.tree->gather_parent == RackIndex{rack}) {
        table[2 * c + 1] = {landed.NextParameters(), landed.reply_bytes()};
      }
    }
    peer.landing = {table, 2 * std::size_t{EndOf(exchange)}};
    if (peer.open) transports[peer.transport_index]->SetLanding(peer.connection, peer.landing);
  }
}

bool IsIdle(const ChunkExchange& chunk) {
  return !chunk.local && !chunk.awaits_result && !chunk.partial_waits && chunk.results_wait == 0;
}

// The lanes' tables keep their length, and have holes.
void UnlinkChunk(const JobShard& shard, const ChunkExchange& chunk) {
  ShardExchange& exchange = *shard.exchange;
  PHUB_CHECK(IsIdle(chunk) && exchange.Find(chunk.number) == &chunk, "number={}", chunk.number);
  for (PeerLane& peer : exchange.peers) {
    if (2 * std::size_t{chunk.number} >= peer.landing.size()) continue;
    peer.landing[EntryOf(chunk.number, EntryKind::kPartial)] = {};
    peer.landing[EntryOf(chunk.number, EntryKind::kParameters)] = {};
  }
  exchange.chunks()[chunk.number] = nullptr;
  const std::size_t level = chunk.chunk->key->level;
  if (chunk.has_terms) exchange.activity.EndRound(level, chunk.partial_bytes);
  NoteChunkRemoved(exchange, level);
}

}  // namespace phub::server::exchange
