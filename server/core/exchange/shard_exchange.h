// One core loop's part in a job's exchange with other racks: lanes to the core loops that own the
// same chunks there, and per chunk what has come of its round.
//
// Memory. Every edge of a chunk's in-tree that ends here has landing memory of its own, so no
// partial ever waits for another chunk's: lanes between racks need no credits and cannot deadlock.
// The protocol's order keeps it free: a rack sends its partial of round t+1 only after it had the
// result of t, which its parent made after it had taken the partial of t in. Over all racks that is
// (racks - 1) times the model; with homes spread evenly each daemon holds less than one.
//
// A peer's landing table: slot 2c takes the partial of chunk c, slot 2c+1 its new parameters. An
// entry is open exactly while such a message is due, so what is forged or comes twice is refused by
// the transport before a byte of it is written.
//
// Two rounds meet here: a child may have round t's result (by another way down) before this rack
// has it, and send its partial of t+1. What is collected is then of round t+1, see collecting().
//
// An aggregator has no ranks that have to wait for a result, and may even be in one of a tree's two
// directions only. So it relays each by itself: sums of round t+1 once t's has gone up (all racks
// below had t's result before they sent any of t+1, and the parent had read t's before that), and
// results as they come, into a slot that is always open.
//
// Ranks that are lost and come back (LossPolicy::kWait). A chunk's round t, at the rank's own rack,
// is in one of these states when the rank pushes it again on a new lane:
//   - It collects: applied is t-1, and not every own rank is in. What the rank had staged went with
//     its lane, and is staged again; what was folded is in the accumulator, and a duplicate.
//   - The own sum is complete (`local`), or has gone up (`awaits_result`). FoldAll has left
//     folded_count at world_size, so any push of t is a duplicate: credited, and answered with the
//     result. Nothing is folded again: OnLocalSum runs once a round, and a partial is sent once.
//   - The result is here: applied is t. It is answered again.
// Nothing else in an exchange knows of own lanes. t+1 cannot be over here, as it needs the push.
//
// Restart. A process that dies had pushed nothing beyond some P, and had had all replies of P-1
// before it pushed any of P. So every chunk here is at P-1 or P, wherever it is at home; that its
// home is at P already, and the result under way, changes nothing. P+1 is nowhere, as it needs this
// rank's push. The result of t lands at parameters[t % 2], where t-1 is not, on every rack, and is
// passed on from there; its slot is open from when the own sum of t has gone up, which needs the
// own ranks' pushes of t. So until the new process pushes P+1 nothing is written over P-1: it may
// be pulled here, before the result of P lands and after. Masters and optimizer state, at the home,
// have one version: they are read only to make P+1.
//
// Ownership as of job_shard.h: control builds, the core loop uses, control frees.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mapped_memory.h"
#include "common/transport/transport.h"
#include "server/core/exchange/rack_plan.h"
#include "server/core/job_shard.h"
#include "server/metrics/exchange_metrics.h"

namespace phub::server::exchange {

// What the first of a round's contributions said; the others must say the same.
struct RoundTerms {
  HyperVersion hyper_version{};
  std::uint64_t hyper_parameters_hash = 0;  // of the record's values: every rank must mean the same
  wire::RoundOperation operation{};
  ElementType payload_type{};
  Rank root{};  // of the whole job
  friend bool operator==(const RoundTerms&, const RoundTerms&) = default;
};

struct ChunkExchange {
  const RackTree* tree = nullptr;
  std::byte* landing = nullptr;  // [reduce child], landing_stride bytes each
  std::uint32_t landing_stride = 0;
  std::uint32_t partial_bytes = 0;  // of a reduction
  std::uint32_t tree_index = 0;     // of `tree` in the plan
  // Of the round that is collected.
  std::uint64_t arrived = 0;  // bit per reduce child whose partial is here
  std::uint64_t empty = 0;    // of those: had no payload (kAssign, and the root is elsewhere)
  bool has_terms = false;
  RackIndex terms_from{};  // who was first; the own rack, if `terms` are its ranks'
  RoundTerms terms;
  bool local = false;  // the own sum is in the chunk's accumulator
  // Of round applied + 1, once its partial is sent (or waits for room in its lane).
  bool awaits_result = false;
  Iteration summed{};              // of aggregators: the newest round whose partial went up
  bool has_payload = false;        // of the own sum, then of the partial
  RoundTerms partial_terms;        // of the partial
  bool partial_waits = false;      // for room in its lane: see PeerLane::waiting
  std::uint64_t results_wait = 0;  // the same of the newest version: bit per gather child
  // When the last but one of the parts of the round that is collected came, and when the newest
  // partial and the newest version were ready to be sent.
  TimeNs alone_since = 0;
  TimeNs partial_ready_at = 0;
  TimeNs result_ready_at = 0;

  // The round whose partials are collected now, at a rack.
  Iteration collecting(Iteration applied) const {
    return Iteration{applied.value + (awaits_result ? 2 : 1)};
  }
};

struct PeerLane {
  bool open = false;
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  std::span<transport::LandingSlot> landing;  // [2 * chunk + (0: partial, 1: parameters)]
  // Messages that found the send queue full, in order: each is 2 * chunk + kind. Never more than
  // the landing table has entries: while one waits, whoever says that the next round has begun, or
  // is over, is at fault.
  std::uint32_t* waiting = nullptr;
  std::uint32_t waiting_capacity = 0;  // of the ring: a power of two
  std::uint64_t waiting_begin = 0;
  std::uint64_t waiting_end = 0;
};

struct ShardExchange {
  RackPlan plan;
  std::uint32_t rank_count = 0;  // of the whole job: what a mean divides by
  std::vector<PeerLane> peers;   // [rack]
  MappedMemory chunk_table;      // ChunkExchange*[kChunksPerShardMax], address space only
  MappedMemory landing_tables;   // address space only
  MappedMemory waiting_rings;    // address space only
  std::uint32_t chunk_count = 0;
  std::uint32_t waiting_count = 0;  // over all peers
  ExchangeMetrics metrics;

  ChunkExchange** chunks() const { return reinterpret_cast<ChunkExchange**>(chunk_table.data()); }
};

// The part of a KeyBatch.
struct ExchangeBatch {
  MappedMemory landing;
  std::vector<ChunkExchange> chunks;
};

// Control's side. Null: the system does not give the memory. A batch's landing has no pages yet.
std::unique_ptr<ShardExchange> MakeShardExchange(RackPlan plan, std::uint32_t rank_count);
std::unique_ptr<ExchangeBatch> MakeExchangeBatch(const ShardExchange& exchange,
                                                 std::span<const KeyShardSpec> keys,
                                                 TreeChooser& chooser);
// `keys` are the same: its chunks are at home where their trees are.
void AddExchange(const ShardExchange& exchange, ExchangeBatch& batch, KeyBatch& keys);
// For admission: of a shard; of a batch, whose trees `chooser` (a copy) would give.
std::uint64_t ShardExchangeBytes(const RackPlan& plan);
std::uint64_t ExchangeBatchBytes(const RackPlan& plan, std::span<const KeyShardSpec> keys,
                                 TreeChooser chooser);

// Core loop's side: the batch's chunks are the shard's from now on. Of the job shard, which has
// them already.
void LinkBatch(const JobShard& shard, ExchangeBatch& batch,
               std::span<transport::Transport* const> transports);

}  // namespace phub::server::exchange
