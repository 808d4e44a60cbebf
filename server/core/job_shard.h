// One job's part of one core loop: its lanes, its keys, the chunks it owns and their memory.
//
// Ownership. Control builds a JobShard (and every KeyBatch) on its own thread and frees them; from
// kAddJob to kJobEnded only the core loop touches what is inside, without locks. Everything is
// sized when it is built: the core loop never allocates. Address space for chunks_max chunks is
// reserved up front; memory behind it is taken as keys are added, and accumulators are backed by
// memory only once they are touched.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/base/element_type.h"
#include "common/base/ids.h"
#include "common/base/mapped_memory.h"
#include "common/simd/kernels.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"
#include "server/core/commands.h"
#include "server/core/schedule/turn.h"
#include "server/metrics/shard_metrics.h"

namespace phub::server {

namespace exchange {
struct ShardExchange;  // server/core/exchange/shard_exchange.h: of jobs that span racks
struct ExchangeBatch;
}  // namespace exchange

using numeric::ElementType;
using simd::Optimizer;
using simd::Reduction;

// Policy for a lane that is lost while its job runs.
enum class LossPolicy : std::uint8_t {
  kFail,  // a fault: the job ends
  kWait,  // what it had staged is discarded; the rank may attach a new lane and push again
};

const char* ToString(LossPolicy policy);  // "fail", "wait"

// What becomes of a reduction whose result is not finite.
enum class Screening : std::uint8_t {
  kOff,     // nobody looks
  kReport,  // counted, and told once
  kReject,  // a fault: the job ends, with the parameters as the round left them
};
const char* ToString(Screening screening);  // "off", "report", "reject"

struct ShardConfig {
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  std::uint32_t world_size = 1;      // ranks of this rack; they count from 0 here, see rank_base
  std::uint32_t rank_base = 0;       // jobs that span racks: what rank 0 of this rack is in the job
  std::uint32_t ranks_of_job = 0;    // jobs that span racks: of all of them
  std::uint32_t ranks_per_rack = 0;  // the same: of each but aggregators, whose world_size is 0
  std::uint32_t chunk_bytes = 64 * 1024;  // of a chunk's elements in the key's parameter type
  std::uint32_t slots_per_lane = 16;
  std::uint32_t replies_per_lane_max = 64;  // replies posted and not yet sent
  LossPolicy on_loss = LossPolicy::kFail;
  bool restart = false;  // the version before the current one is kept, for ranks that start anew
  Screening screening = Screening::kReport;
  // Rounds are summed, and applied once the workers have decided (rounds/whole_iteration.h).
  bool apply_iteration = false;
  bool norms = false;        // of apply_iteration: the workers are told the norm of each sum
  std::uint32_t tenant = 0;  // a number that is the same for all jobs of a tenant
  TenantShare share = {};    // of that tenant, when the job is added

  std::uint32_t versions() const { return restart ? 2 : 1; }
};

// A key as one shard sees it: the chunks of it that this core loop owns.
struct KeyShardSpec {
  struct ChunkSpec {
    std::uint32_t element_count = 0;
    std::uint64_t element_offset = 0;  // in the key
  };
  KeyIndex key{};  // keys of a job are added in order, each shard gets every key (perhaps 0 chunks)
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  ElementType type = ElementType::kF32;            // of the parameters that are kept
  ElementType gradient_type = ElementType::kF32;   // as gradients come
  ElementType parameter_type = ElementType::kF32;  // as parameters go
  wire::HyperParameters hyper_parameters{};        // version 1
  std::vector<ChunkSpec> chunks;                   // in offset order
  // The whole key's parameters in parameter_type, zero-filled: version v at [v % versions()]. Local
  // workers may map this memory. Owned by control, for as long as the shard.
  std::array<std::byte*, 2> parameters{};
};

// Two can be in use at once; see ingest/hyper_parameters.h.
inline constexpr std::uint32_t kHyperVersionsPerKey = 4;

struct ShardKey {
  struct HyperParameterSet {
    HyperVersion version{};  // 0: empty
    Rank announced_by{};
    wire::HyperParameters values{};
  };
  KeyIndex key{};
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  ElementType type = ElementType::kF32;
  ElementType gradient_type = ElementType::kF32;
  ElementType parameter_type = ElementType::kF32;
  wire::HyperParameters first_values{};  // of version 1
  // Version v lies at v % kHyperVersionsPerKey.
  HyperParameterSet hyper_parameters[kHyperVersionsPerKey];
  // The key's chunks in this shard, one after the other.
  ChunkIndex first_chunk{};
  std::uint32_t chunk_count = 0;

  bool has_masters() const { return type != parameter_type; }
  // The values of a version that a round named; of version 1 if it is not held any more.
  const wire::HyperParameters& ValuesOf(HyperVersion version) const;
};

// A chunk's round: what is known of iteration applied+1, and the memory of the chunk.
struct Chunk {
  ChunkIndex index{};
  std::uint32_t element_count = 0;
  std::uint64_t element_offset = 0;  // in the key
  ShardKey* key = nullptr;
  // In key->parameter_type, as workers get them; of sum-only keys, the last result. Version v lies
  // at [v % 2]; both are the same memory when one version is kept.
  std::array<std::byte*, 2> parameters{};
  std::byte* masters = nullptr;      // in key->type, if that is another type; one version
  std::byte* accumulator = nullptr;  // ranks [0, folded_count), if any; accumulation type
  std::array<std::byte*, simd::kStatesMax> state{};  // optimizer state, or null
  Iteration applied{};
  std::uint64_t reductions = 0;  // of the rounds applied: those that were reductions
  std::array<HyperVersion, 2>
      applied_hyper_version{};     // [v % 2]: named by the round that made version v
  std::uint32_t folded_count = 0;  // ranks [0, folded_count) are in the accumulator
  std::uint32_t staged_count = 0;  // ranks whose gradient waits
  bool folded_non_finite = false;  // the round so far is not finite, and counted
  // apply_iteration: the round is summed, and waits in the accumulator to be decided or applied.
  bool is_summed = false;
  bool sum_non_finite = false;  // of is_summed
  bool skip_asked = false;      // by some rank of the round
  double squared_norm = 0.0;    // of is_summed, with ShardConfig::norms
  // [rank]: where its gradient lies, null if it does not wait; and the slot that it holds, or
  // kNoSlot if it lies in memory that worker and daemon share.
  const std::byte** staged_data = nullptr;
  SlotIndex* staged_slot = nullptr;
  SharedAddress* reply_address = nullptr;  // [rank]: where it wants the reply; 0: anywhere
  std::uint64_t* wants_reply = nullptr;    // bit per rank: pushed on the lane it now has
  // What the round's first rank said; the others must say the same.
  Rank first_rank{};
  HyperVersion hyper_version{};
  wire::RoundOperation operation{};
  ElementType payload_type{};
  Rank root{};  // of the whole job
  // This daemon applies its rounds, and has its masters and state: of a job that spans racks, in
  // the chunk's home alone. Set before the core loop gets it.
  bool is_home = true;
  bool is_queued = false;  // a whole round that waits to be finished (schedule/fair_queue.h)
  Chunk* next_queued = nullptr;
  TimeNs round_since = 0;         // when its first gradient came
  TimeNs last_awaited_since = 0;  // when one rank alone was missing; several ranks only

  std::uint32_t arrived_count() const { return folded_count + staged_count; }
  bool HasArrived(Rank rank) const {
    return rank.value < folded_count || staged_data[rank.value] != nullptr;
  }
  std::byte* Parameters(Iteration version) const { return parameters[version.value % 2]; }
  std::byte* NextParameters() const { return parameters[(applied.value + 1) % 2]; }
  std::uint32_t Bytes(ElementType type) const {
    return element_count * numeric::ElementBytes(type);
  }
  std::uint32_t reply_bytes() const { return Bytes(key->parameter_type); }
};

struct Lane {
  enum class State : std::uint8_t { kAbsent, kOpen };
  State state = State::kAbsent;
  bool departed = false;  // the rank left in order
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  std::vector<transport::LandingSlot> landing;  // [slot], over the memory that came with the lane
  std::vector<ChunkIndex> slot_chunk;           // [slot]: the chunk staged there, or Max()
  std::uint32_t slots_used = 0;
  std::uint32_t staged_in_place = 0;  // gradients that wait in shared memory, without a slot
  // Replies: a window, and bits per chunk for those that found it full.
  std::uint32_t replies_posted = 0;
  std::uint32_t replies_pending = 0;
  std::uint64_t* pending_reply = nullptr;     // bit per chunk: the current version
  std::uint64_t* pending_previous = nullptr;  // bit per chunk: the version before it
  std::uint32_t pending_cursor = 0;           // word at which the next search starts
  std::uint64_t* pending_summed = nullptr;    // bit per chunk: it is to be told that it is summed
  std::uint32_t summed_pending = 0;           // bits that are set there
  bool decided = false;                       // apply_iteration: about the iteration that waits
  // Credits wait here when the transport's queue is full. Capacity: one per slot, never more.
  struct WaitingCredit {
    ChunkIndex chunk{};
    SlotIndex slot{};
  };
  std::vector<WaitingCredit> credits_waiting;
};

// Keys and chunks ready to be linked into a shard; the memory behind them, but for the parameters.
// Owned by control.
struct KeyBatch {
  MappedMemory masters;
  MappedMemory accumulators;  // not backed until touched
  MappedMemory state;
  std::vector<const std::byte*> staged_data;
  std::vector<SlotIndex> staged_slots;
  std::vector<SharedAddress> reply_addresses;
  std::vector<std::uint64_t> wants_reply;
  std::vector<ShardKey> keys;
  std::vector<Chunk> chunks;
  exchange::ExchangeBatch* exchange = nullptr;  // jobs that span racks; owned by control
  std::uint64_t memory_bytes = 0;               // what admission charges for it
};

// State of a shard's chunks: a snapshot on its way out, or saved state on its way in. Built by
// control; the core loop reads and writes it between kTakeSnapshot or kLoadCheckpoint and the end
// of that (see commands.h). Of chunks whose home is elsewhere it holds numbers only: they are saved
// there, and brought there.
struct CheckpointImage {
  struct ChunkImage {
    std::byte* parameters = nullptr;  // in parameter_type
    std::byte* masters = nullptr;     // in type; null where parameters are masters
    std::array<std::byte*, simd::kStatesMax> state{};
    std::uint64_t reductions = 0;
    Iteration applied{};  // of snapshots
    // Snapshot: it was copied. Saved state: it was brought. Read by control while a snapshot is
    // taken, so that it can send what is there already.
    std::atomic<bool> ready{false};
  };
  struct KeyImage {
    std::uint64_t target = 0;  // of snapshots: copy the chunks at this number of reductions
    wire::HyperParameters hyper_parameters{};  // of snapshots: the newest version
  };
  std::vector<KeyImage> keys;            // [key]; snapshots only
  std::unique_ptr<ChunkImage[]> chunks;  // [chunk] of the shard
  std::uint32_t chunk_count = 0;
  std::uint32_t chunks_left = 0;  // snapshots: of those at home, not yet copied
  std::uint32_t cursor = 0;       // snapshots: chunks before it are copied, or wait for a round
  bool missed = false;            // snapshots: some chunk was past its target
  MappedMemory memory;
};

// The first reduction of a shard whose result was not finite.
struct NonFinite {
  bool seen = false;
  Rank rank = Rank::Max();  // whose gradient was the first to be so; Max(): the sum overflowed
  KeyIndex key{};
  Iteration iteration{};
  bool told = false;  // to control
};

// Jobs with apply_iteration: what waits, and what the workers say of it
// (rounds/whole_iteration.h).
struct ShardIteration {
  std::uint32_t summed_count = 0;    // chunks that are summed and wait to be decided
  TimeNs summed_since = 0;           // when the first of them was
  std::uint32_t decided_count = 0;   // ranks that have decided about them
  std::uint64_t decisions = 0;       // that were made
  std::uint32_t applying_count = 0;  // chunks of the last decision that are still to be applied
  // Of the last decision, or the one under way: what its first rank said.
  Rank first_rank{};
  bool skip = false;
  double scale = 1.0;  // of every gradient
};

// How the rounds of a job become versions (rounds/round_stages.h).
enum class RoundPolicy : std::uint8_t { kPlain, kWholeIteration, kAcrossRacks };

struct JobShard {
  ShardConfig config;
  MappedMemory chunk_table;   // Chunk*[kChunksPerShardMax], address space only
  MappedMemory key_table;     // ShardKey*[kKeysPerJobMax], address space only
  MappedMemory pending_bits;  // of all lanes, address space only
  std::vector<Lane> lanes;    // [rank]
  std::uint32_t chunk_count = 0;
  std::uint32_t key_count = 0;
  std::uint32_t lanes_full = 0;      // lanes without a free slot
  std::uint32_t lanes_open = 0;      // adopted by a transport and not yet reported closed
  std::uint32_t departed_count = 0;  // ranks that left in order
  std::uint32_t reply_backlog = 0;   // replies, credits and sums to be told that wait, of all lanes
  RoundPolicy round_policy{};        // chosen when the core loop gets the job
  bool ending = false;               // kEndJob was executed
  bool faulted = false;              // a fault was reported; the shard only drains
  schedule::JobTurn turn;            // fair_queue.h's
  NonFinite non_finite;              // the first sum that was not finite
  ShardIteration iteration;
  CheckpointImage* snapshot = nullptr;          // being taken
  CheckpointImage* loaded = nullptr;            // what rounds of kLoad put in place
  exchange::ShardExchange* exchange = nullptr;  // null: the job is this rack's alone
  std::uint64_t memory_bytes = 0;               // what admission charges, without batches
  ShardMetrics metrics;                         // the core loop's to write, anybody's to read

  Chunk** chunks() const { return reinterpret_cast<Chunk**>(chunk_table.data()); }
  ShardKey** keys() const { return reinterpret_cast<ShardKey**>(key_table.data()); }
  bool live() const { return !ending && !faulted; }
  // A round of kLoad would put it in place.
  bool CheckpointIsLoaded(const Chunk& chunk) const {
    return loaded != nullptr && chunk.index.value < loaded->chunk_count &&
           loaded->chunks[chunk.index.value].ready.load(std::memory_order_relaxed);
  }
};

// Control's side: builds a shard, or keys for it, of which masters and state have no pages yet
// (TakePages). Aborts on a config that control should have refused; returns null when the memory
// cannot be had.
std::unique_ptr<JobShard> MakeJobShard(const ShardConfig& config);
std::unique_ptr<KeyBatch> MakeKeyBatch(const ShardConfig& config,
                                       std::span<const KeyShardSpec> keys);
// Memory for an image of the shard's chunks. Reads what the core loop writes when keys are added:
// to be called while no kAddKeys of this shard is unacknowledged.
std::unique_ptr<CheckpointImage> MakeCheckpointImage(const JobShard& shard);
// What the above will take, for admission, without taking it. Of a shard: with the staging of its
// lanes, which control allocates. Of a batch: without the parameters.
std::uint64_t JobShardBytes(const ShardConfig& config);
std::uint64_t StagingBytesPerLane(const ShardConfig& config);
std::uint64_t KeyBatchBytes(const ShardConfig& config, std::span<const KeyShardSpec> keys);
std::uint64_t CheckpointImageBytes(const JobShard& shard);

// Rounds that wait for ranks, in chunk order. Bounded: `dropped` counts what found no room.
struct StallReport {
  struct Entry {
    KeyIndex key{};
    Iteration iteration{};
    TimeNs since = 0;  // when the round's first gradient came
    std::uint32_t chunks_waiting = 0;
    std::vector<std::uint64_t> missing;  // bit per rank; sized by control before sending
  };
  std::vector<Entry> entries;  // sized by control: the bound
  std::uint32_t count = 0;
  std::uint32_t dropped = 0;
};

// Where the chunks of each key are. Filled by the core loop.
struct VersionReport {
  struct Entry {
    std::uint32_t chunk_count = 0;  // 0: the rest means nothing
    Iteration applied_min{}, applied_max{};
    std::uint64_t reductions_min = 0, reductions_max = 0;
    // Named by the rounds that made version applied_min, and the one before it; 0: none did.
    HyperVersion hyper_version{}, previous_hyper_version{};
    wire::HyperParameters hyper_parameters{}, previous_hyper_parameters{};
  };
  std::vector<Entry> keys;      // sized by control
  std::uint32_t key_count = 0;  // of the shard, by now; entries beyond `keys` are left out
};

}  // namespace phub::server
