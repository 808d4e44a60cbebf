// One core loop's part in a job's exchange with other racks: the lanes to the core loops that own
// the same chunks there, and the state of each chunk's round.
//
// Memory. Every edge of a chunk's in-tree that ends here has its own landing memory, so a partial
// sum never waits for another chunk's. Lanes between racks need no credits and cannot deadlock. The
// memory is free when it is needed: a rack sends its partial sum of round t+1 only after it has the
// result of t, and its parent read the partial sum of t before that result existed. Over all racks
// the landing memory is (racks - 1) times the model; if homes are spread evenly, each daemon has
// less than one model's size.
//
// Priority classes. Messages of keys of a higher class are posted first (peer_window.h).
//
// Landing table of a peer. Slot 2c receives the partial sum of the chunk with number c
// (ChunkExchange::number), slot 2c+1 its new parameters. An entry is open exactly while such a
// message is due, so the transport refuses a forged or repeated message before it writes any byte.
//
// Overlapping rounds. A child may receive round t's result on another path earlier than this rack,
// and send its partial sum of t+1. Then this rack collects round t+1; see collecting().
//
// Aggregators. An aggregator has no ranks that wait for a result, and may be part of only one of a
// tree's two directions. So it relays each direction independently:
//   - Sums of round t+1 as soon as that of t was sent up. All racks below had t's result before
//     they sent anything of t+1, and the parent had read the sum of t before that.
//   - Results as they arrive, into a slot that is always open.
//
// Lost ranks that come back (LossPolicy::kWait). When the rank pushes round t of a chunk again on a
// new lane, the round at the rank's own rack is in one of these states:
//   - Collecting: applied is t-1, and not every own rank has arrived. If the rank's gradient was
//     staged, it was discarded with its lane and is staged again. If it was folded, it is in the
//     accumulator, and the new push is a duplicate.
//   - The own sum is complete (`local`), or was sent up (`awaits_result`). FoldAll has set
//     folded_count to world_size, so every push of t is a duplicate: it is credited, and answered
//     with the result. Nothing is folded twice: OnLocalSum runs once per round, and a partial sum
//     is sent once.
//   - The result has arrived: applied is t. The push is answered again.
// No other part of an exchange depends on own lanes. Round t+1 cannot be complete here, because it
// needs the rank's push.
//
// Restart. Let P be the last iteration that the dead process began to push. It had received all
// replies of P-1 before that. So every chunk at this rack is at P-1 or P, even if its home is at P
// already and the result is in flight. No chunk is at P+1 anywhere, because that needs this rank's
// push. On every rack, the result of t lands at parameters[t % 2], which does not hold t-1, and is
// forwarded from there. Its slot opens when the own sum of t is sent up, which needs the own ranks'
// pushes of t. So nothing overwrites P-1 until the new process pushes P+1, and the new process can
// pull P-1 here before and after the result of P arrives. Masters and optimizer state, which only
// the home has, have one version: they are read only to make P+1.
//
// Groups. The keys of a group that has members in several racks go along the group's own plan, over
// the same lanes. Their chunks have numbers from kGroupNumbersFirst on, which rack 0 gives out.
// Racks without members do not have them.
//
// Ownership as in job_shard.h: control creates and frees, the core loop uses.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/mapped_memory.h"
#include "common/base/priority_levels.h"
#include "common/transport/transport.h"
#include "server/core/exchange/class_activity.h"
#include "server/core/exchange/rack_plan.h"
#include "server/core/job_shard.h"
#include "server/metrics/exchange_metrics.h"

namespace phub::server::exchange {

// Numbers of chunks on lanes between racks: those of groups begin here.
inline constexpr std::uint32_t kGroupNumbersFirst = kChunksPerShardMax;

// A hash of the encoded values, because a rack never sees the records of another rack's ranks.
std::uint64_t HashOf(const wire::HyperParameters& values);

// The parameters of a round, from its first contribution; all others must have the same.
struct RoundTerms {
  HyperVersion hyper_version{};
  std::uint64_t hyper_parameters_hash = 0;  // hash of the values of hyper_version
  wire::RoundOperation operation{};
  ElementType payload_type{};
  Rank root{};  // numbered over the whole job
  friend bool operator==(const RoundTerms&, const RoundTerms&) = default;
};

struct ChunkExchange {
  Chunk* chunk = nullptr;
  // Its number on lanes between racks, the same in every rack. The numbers of chunks may differ,
  // because each rack also has chunks of groups that other racks do not know.
  std::uint32_t number = 0;
  const RackTree* tree = nullptr;
  std::uint32_t rank_count = 0;  // that push the chunk, in all racks; the divisor of a mean
  bool measured = true;          // its reductions are; false: a group's
  std::byte* landing = nullptr;  // [reduce child], landing_stride bytes each
  std::uint32_t landing_stride = 0;
  std::uint32_t partial_bytes = 0;  // size of a reduction's partial sum
  std::uint32_t tree_index = 0;     // index of `tree` in the plan
  // The round that is being collected.
  std::uint64_t arrived = 0;  // bit per reduce child whose partial sum has arrived
  std::uint64_t empty = 0;  // subset without payload (kLoad; kAssign with the root in other racks)
  bool has_terms = false;
  RackIndex terms_from{};  // the first contributor; the own rack, if that is its ranks
  RoundTerms terms;
  bool local = false;  // this rack's sum is in the chunk's accumulator
  // The partial sum of round applied + 1 was sent, or waits for room in its lane.
  bool awaits_result = false;
  Iteration summed{};              // aggregators: the newest round whose partial sum was sent up
  bool has_payload = false;        // this rack's sum, and then the partial sum, has payload
  RoundTerms partial_terms;        // terms of the partial sum
  bool partial_waits = false;      // it waits for room in its lane, see PeerLane::waiting
  std::uint64_t results_wait = 0;  // bit per gather child to which the newest version still waits
  // When all parts but one of the collected round had arrived, and when the newest partial sum and
  // the newest version were ready to be sent.
  TimeNs alone_since = 0;
  TimeNs partial_ready_at = 0;
  TimeNs result_ready_at = 0;

  // The round whose partial sums a rack collects now.
  Iteration collecting(Iteration applied) const {
    return Iteration{applied.value + (awaits_result ? 2 : 1)};
  }
};

// A ring of messages that wait to be posted, in order: each is 2 * number + kind.
struct WaitingMessages {
  std::uint32_t* ring = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct PeerLane {
  bool open = false;
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  transport::Connection* peer = nullptr;      // while it is open
  std::span<transport::LandingSlot> landing;  // [2 * number + (0: partial, 1: parameters)]
  // [level]: the messages that found the lane's window or queue full (peer_window.h). They are
  // never more than the entries of the landing table: while a message waits, a peer cannot rightly
  // begin or finish the next round, so such a message from a peer is a fault.
  std::array<WaitingMessages, kPriorityLevels> waiting;
  std::uint32_t waiting_capacity = 0;  // a power of two: size of each ring
  // [level]: the size of its messages that are posted and not yet sent (peer_window.h: UnitsOf).
  std::array<std::uint64_t, kPriorityLevels> posted_at{};
  std::uint32_t unsent_bytes_max = 0;  // the limit that the connection has; see LimitUnsent()
  std::uint32_t posted = 0;            // messages whose kSent was not polled yet
  std::uint32_t draining = 0;          // those posted before JobShard::removal began
};

struct ShardExchange {
  RackPlan plan;
  std::uint32_t rank_count = 0;   // ranks of the whole job
  std::vector<PeerLane> peers;    // [rack]
  MappedMemory chunk_table;       // [number]: ChunkExchange*, address space only
  MappedMemory landing_tables;    // address space only
  MappedMemory waiting_rings;     // address space only
  std::uint32_t chunk_count = 0;  // chunks of keys of the whole job, which have numbers from 0 on
  std::uint32_t group_end = 0;    // kGroupNumbersFirst + group_end: after the chunks of groups
  std::uint32_t lanes_open = 0;
  // Over all peers: the messages that wait, and those of each level; and PeerLane::posted_at.
  std::uint32_t waiting_count = 0;
  std::array<std::uint32_t, kPriorityLevels> waiting_at{};
  std::array<std::uint64_t, kPriorityLevels> posted_at{};
  // [level]: the size of what higher levels have posted since a message of this level was posted or
  // began to wait.
  std::array<std::uint64_t, kPriorityLevels> overtaken{};
  // Likewise of what higher levels have received.
  std::array<std::uint64_t, kPriorityLevels> received_above{};
  ClassActivity activity;
  // The racks where the next search for a message that may be posted, or is due, begins.
  std::uint32_t next_flushed = 0;
  std::uint32_t next_due = 0;
  // [level]: how many chunks have it; the highest level that some chunk has; and whether chunks
  // have several.
  std::array<std::uint32_t, kPriorityLevels> chunks_at{};
  std::uint8_t top_level = 0;
  bool has_classes = false;
  ExchangeMetrics metrics;

  ChunkExchange** chunks() const { return reinterpret_cast<ChunkExchange**>(chunk_table.data()); }
  // Null: no chunk has that number here.
  ChunkExchange* Find(std::uint32_t number) const {
    const bool in_group = number >= kGroupNumbersFirst;
    return number < (in_group ? kGroupNumbersFirst + group_end : chunk_count) ? chunks()[number]
                                                                              : nullptr;
  }
};

// The exchange's part of a KeyBatch.
struct ExchangeBatch {
  MappedMemory landing;
  std::vector<ChunkExchange> chunks;
  std::optional<std::uint32_t> first_number;  // groups: of its chunks
  std::shared_ptr<const RackPlan> plan;       // groups: the chunks refer to it
};

// How the racks of a group exchange. The members' racks agree on all of it.
struct GroupPart {
  std::shared_ptr<const RackPlan> plan;
  std::uint32_t rank_count = 0;
  std::uint32_t first_number = 0;  // its first chunk's
};

// Called by control. Null: out of memory. The landing memory of a batch has no pages yet.
std::unique_ptr<ShardExchange> MakeShardExchange(RackPlan plan, std::uint32_t rank_count);
std::unique_ptr<ExchangeBatch> MakeExchangeBatch(const ShardExchange& exchange,
                                                 std::span<const KeyShardSpec> keys,
                                                 TreeChooser& chooser,
                                                 const GroupPart* group = nullptr);
// Links `batch` and `keys`, which must have the same chunks, and marks the chunks whose home is
// this rack.
void AddExchange(const ShardExchange& exchange, ExchangeBatch& batch, KeyBatch& keys);
// Memory of a shard and of a batch, for admission. `chooser` is a copy, so it does not advance.
std::uint64_t ShardExchangeBytes(const RackPlan& plan);
std::uint64_t ExchangeBatchBytes(const RackPlan& plan, std::span<const KeyShardSpec> keys,
                                 TreeChooser chooser);

// Called by the core loop. Whether this rack has no part of a round of the chunk, and owes no other
// rack a message about it. A partial sum of another rack may have arrived: that rack has a part.
bool IsIdle(const ChunkExchange& chunk);
// No message about the chunk can arrive any more, and its number is free. REQUIRES: IsIdle().
void UnlinkChunk(const JobShard& shard, const ChunkExchange& chunk);
// Called by the core loop: numbers the batch's chunks and adds them to the exchange. REQUIRES: the
// shard already has them.
void LinkBatch(const JobShard& shard, ExchangeBatch& batch,
               std::span<transport::Transport* const> transports);

}  // namespace phub::server::exchange
