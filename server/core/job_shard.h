// One job's part of one core loop: its lanes, its keys, the chunks that the loop owns, and their
// memory.
//
// Ownership. Control creates and frees a JobShard and every KeyBatch on its own thread. From
// kAddJob to kJobEnded only the core loop accesses their contents, without locks. Everything has
// its final size when it is created, so the core loop never allocates. Address space for
// kChunksPerShardMax chunks is reserved at once; pages are allocated as keys are added, and for
// accumulators only when they are first used.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/chunk_map.h"
#include "common/base/clock.h"
#include "common/base/element_type.h"
#include "common/base/group_keys.h"
#include "common/base/ids.h"
#include "common/base/mapped_memory.h"
#include "common/base/priority_levels.h"
#include "common/simd/kernels.h"
#include "common/wire/message.h"
#include "server/core/checkpoint_image.h"
#include "server/core/commands.h"
#include "server/core/conflict.h"
#include "server/core/lane.h"
#include "server/core/long_work.h"
#include "server/core/members.h"
#include "server/core/pooled_part.h"
#include "server/core/reports.h"
#include "server/core/schedule/turn.h"
#include "server/core/shard_key.h"
#include "server/metrics/memory_metrics.h"
#include "server/metrics/shard_metrics.h"

namespace phub::server {

namespace exchange {
struct ShardExchange;  // server/core/exchange/shard_exchange.h: for jobs that span racks
struct ExchangeBatch;
struct ChunkExchange;
}  // namespace exchange

struct ShardSums;  // server/core/shard_sums.h

// What happens when a lane is lost while its job runs.
enum class LossPolicy : std::uint8_t {
  kFail,  // a fault: the job ends
  kWait,  // its staged gradients are discarded; the rank may attach a new lane and push again
};

const char* ToString(LossPolicy policy);  // "fail", "wait"

// What happens when the result of a reduction is not finite.
enum class Screening : std::uint8_t {
  kOff,     // not checked
  kReport,  // all are counted, the first one is reported
  kReject,  // a fault: the job ends with the parameters that the round produced
};
const char* ToString(Screening screening);  // "off", "report", "reject"

struct ShardConfig {
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  std::uint32_t world_size = 1;  // ranks of this rack, counted from 0; an aggregator has none
  // The next three are for jobs that span racks.
  std::uint32_t rank_base = 0;            // this rack's rank 0 is this rank of the job
  std::uint32_t ranks_of_job = 0;         // ranks of all racks together
  std::uint32_t ranks_per_rack = 0;       // ranks of each rack, except aggregators
  std::uint32_t chunk_bytes = 64 * 1024;  // size of a chunk's elements in the key's own type
  std::uint32_t slots_per_lane = 16;
  std::uint32_t replies_per_lane_max = 64;  // replies posted and not yet sent
  LossPolicy on_loss = LossPolicy::kFail;
  bool restart = false;  // keep the version before the current one, for ranks that restart
  Screening screening = Screening::kReport;
  // Rounds are summed, and applied once the workers have decided (rounds/whole_iteration.h).
  bool apply_iteration = false;
  bool norms = false;  // apply_iteration: send the norm of each sum to the workers
  // sum=fixed: gradients of floating-point types are summed in fixed point, in blocks of that many
  // elements (common/aggregation/fixed_point.h). 0: sum=float. Excludes jobs that span racks.
  std::uint32_t sum_block = 0;
  std::uint32_t tenant = 0;  // the same number for all jobs of a tenant
  TenantShare share = {};    // the tenant's share when the job is added

  std::uint32_t versions() const { return restart ? 2 : 1; }
};

// A chunk: the state of its round for iteration applied+1, and its memory.
struct Chunk {
  ChunkIndex index{};
  std::uint32_t element_count = 0;
  std::uint64_t element_offset = 0;  // in the key
  Rank sender = kEveryRank;          // see KeyParts; numbered over the whole job
  Rank receiver = kEveryRank;        // likewise
  ShardKey* key = nullptr;
  // The ranks that push it: key->members, and how many they are. The arrays below have an entry for
  // each member.
  const Members* members = nullptr;
  std::uint32_t member_count = 0;
  // In key->parameter_type, as sent to workers; for sum-only keys, the last result. Version v is at
  // [v % 2]; both pointers are equal if only one version is kept.
  std::array<std::byte*, 2> parameters{};
  std::byte* masters = nullptr;  // in key->type, if that differs; one version
  // The fold of members [0, folded_count), in accumulation type.
  std::byte* accumulator = nullptr;
  // With key->sum_block, instead: copies of their gradients, since the scale of a sum in fixed
  // point depends on all ranks. There is room for all members but the last.
  std::byte* copies = nullptr;
  std::array<std::byte*, simd::kStatesMax> state{};  // optimizer state, or null
  Iteration applied{};
  std::uint64_t reductions = 0;  // applied rounds that were reductions
  // [v % 2]: the hyper-parameters' version that the round of version v named.
  std::array<HyperVersion, 2> applied_hyper_version{};
  std::uint32_t folded_count = 0;  // members [0, folded_count) are in the accumulator
  std::uint32_t staged_count = 0;  // members whose gradient is staged
  bool folded_non_finite = false;  // the round's sum is not finite and has been counted
  // apply_iteration: the sum is in the accumulator and waits for the decision or the update.
  bool is_summed = false;
  bool sum_non_finite = false;  // if is_summed
  bool skip_asked = false;      // some rank asked to skip this iteration
  double squared_norm = 0.0;    // if is_summed, with ShardConfig::norms
  // [member]: the address of its staged gradient, or null; and the slot of the gradient, or kNoSlot
  // if it is in memory that worker and daemon share.
  const std::byte** staged_data = nullptr;
  SlotIndex* staged_slot = nullptr;
  SharedAddress* reply_address = nullptr;  // [member]: where to write its reply; 0: no preference
  std::uint64_t* wants_reply = nullptr;    // bit per member that pushed on its current lane
  // The parameters of the round, from its first rank; all others must have the same.
  Rank first_rank{};
  HyperVersion hyper_version{};
  wire::RoundOperation operation{};
  ElementType payload_type{};
  Rank root{};  // numbered over the whole job
  // Pooled keys: the current round, and the one that made the applied version, since replies to it
  // may be sent again while the next round has begun.
  PooledPart pool, applied_pool;
  // This rack applies the chunk's rounds and has its masters and state. If the job spans racks,
  // that is only the chunk's home. Set before the core loop gets the chunk.
  bool is_home = true;
  // Its rounds go through the exchange with other racks; null: they stay in this rack, as in jobs
  // of one rack. Likewise set before.
  exchange::ChunkExchange* exchange = nullptr;
  bool is_queued = false;  // its whole round waits for its turn (schedule/fair_queue.h)
  Chunk* next_queued = nullptr;
  TimeNs round_since = 0;         // when the round's first gradient arrived
  TimeNs last_awaited_since = 0;  // since when only one rank is missing; unused with one rank

  std::uint32_t arrived_count() const { return folded_count + staged_count; }
  bool IsWhole() const { return arrived_count() == member_count; }
  // A rank's index among the members, kNoMember if it is not one; and the rank of an index.
  std::uint32_t IndexOf(Rank rank) const {
    return members == nullptr ? rank.value : members->IndexOf(rank);
  }
  Rank RankOf(std::uint32_t member) const {
    return members == nullptr ? Rank{member} : members->RankOf(member);
  }
  bool IsMember(Rank rank) const { return IndexOf(rank) < member_count; }
  bool HasArrivedAt(std::uint32_t member) const {
    return member < folded_count || staged_data[member] != nullptr;
  }
  // REQUIRES: the rank is a member.
  bool HasArrived(Rank rank) const { return HasArrivedAt(IndexOf(rank)); }
  std::byte* Parameters(Iteration version) const { return parameters[version.value % 2]; }
  std::byte* NextParameters() const { return parameters[(applied.value + 1) % 2]; }
  std::uint32_t Bytes(ElementType type) const {
    return element_count * numeric::ElementBytes(type);
  }
  // What a rank pushes in a reduction.
  std::uint32_t GradientBytes() const {
    if (key->encoding.none()) return Bytes(key->gradient_type);
    return static_cast<std::uint32_t>(numeric::EncodedBytes(key->encoding, element_count));
  }
  simd::Encoded Encoded() const { return {key->encoding, element_count, 0}; }
  // The copy of a member's gradient. REQUIRES: key->sum_block is not 0.
  std::byte* CopyOf(std::uint32_t member) const {
    return copies + std::size_t{member} * Bytes(key->gradient_type);
  }
  bool is_pooled() const { return key->pool_bytes != 0; }
  // What the current round consists of.
  std::uint32_t elements() const { return is_pooled() ? pool.elements : element_count; }
  Reduction reduction() const { return is_pooled() ? pool.round.reduction : key->reduction; }
  ElementType gradient_type() const { return is_pooled() ? payload_type : key->gradient_type; }
  // Replies that send the applied version, and those that will send the next one.
  ElementType reply_type() const { return is_pooled() ? applied_pool.type : key->parameter_type; }
  std::uint32_t reply_bytes() const {
    return is_pooled() ? applied_pool.Bytes() : Bytes(key->parameter_type);
  }
  std::uint32_t next_reply_bytes() const { return is_pooled() ? pool.Bytes() : reply_bytes(); }
  // Whether checkpoints of this rack contain the chunk.
  bool IsSaved() const { return is_home && !key->collective; }
  // Whether a rank of the job receives the applied version's elements, or only the news of it.
  bool RepliesWithPayloadTo(Rank rank_of_job) const {
    if (is_pooled()) return !applied_pool.IsMovedBy(rank_of_job);
    return receiver == kEveryRank || receiver == rank_of_job;
  }
  // The bytes of a pooled round in this chunk: all that its capacity and the round's end allow. 0:
  // the round does not cover the chunk, or is longer than its key.
  std::uint32_t PoolBytes(const wire::MessageHeader& header) const;
};

// Keys and chunks to be linked into a shard, with their memory except for the parameters. Owned by
// control.
struct KeyBatch {
  MappedMemory masters;
  MappedMemory accumulators;  // pages are allocated on first use
  MappedMemory state;
  std::vector<const std::byte*> staged_data;
  std::vector<SlotIndex> staged_slots;
  std::vector<SharedAddress> reply_addresses;
  std::vector<std::uint64_t> wants_reply;
  std::vector<ShardKey> keys;
  std::vector<Chunk> chunks;
  // Of chunks whose rounds go to other racks; null: they do not. Owned by control.
  exchange::ExchangeBatch* exchange = nullptr;
  std::uint64_t memory_bytes = 0;  // what admission charges for it
};

// The first reduction of a shard whose result was not finite.
struct NonFinite {
  bool seen = false;
  Rank rank = Rank::Max();  // the first rank with such a gradient; Max(): the sum overflowed
  KeyIndex key{};
  Iteration iteration{};
  bool told = false;  // reported to control
};

// Jobs with apply_iteration: the sums that wait, and the workers' decision about them
// (rounds/whole_iteration.h).
struct ShardIteration {
  std::uint32_t chunk_count = 0;     // chunks of an iteration: all but those of collective keys
  std::uint32_t summed_count = 0;    // chunks that are summed and wait for the decision
  TimeNs summed_since = 0;           // when the first of them was summed
  std::uint32_t decided_count = 0;   // ranks that have decided about them
  std::uint64_t decisions = 0;       // decisions so far
  std::uint32_t applying_count = 0;  // chunks that wait for the update of the last decision
  // The current or last decision, from its first rank; all others must decide the same.
  Rank first_rank{};
  bool skip = false;
  double scale = 1.0;  // multiplies every gradient
};

// How the rounds of a job become versions (rounds/round_stages.h).
enum class RoundPolicy : std::uint8_t { kPlain, kFixedSums, kWholeIteration, kAcrossRacks };

struct JobShard {
  JobShard();
  ~JobShard();

  // Call it where the memory of a chunk's data is read or written.
  void CountMemory(MemoryWork work, MemoryBytes bytes) const {
    if (memory != nullptr) memory->Count(work, bytes);
  }

  ShardConfig config;
  MappedMemory chunk_table;         // Chunk*[kChunksPerShardMax], address space only
  MappedMemory key_table;           // ShardKey*[kKeysMax], address space only
  MappedMemory pending_bits;        // bitmaps of all lanes, address space only
  std::vector<Lane> lanes;          // [rank]
  std::uint32_t chunk_count = 0;    // the end of the numbers that are in use
  std::uint32_t key_count = 0;      // keys of the whole job
  std::uint32_t group_key_end = 0;  // kGroupKeysFirst + group_key_end: the same for groups
  // What numbers of chunks refer to that no key has: a chunk that no rank pushes. A group's keys
  // can be removed before later ones, which keep their numbers.
  std::unique_ptr<ShardKey> no_key = std::make_unique<ShardKey>();
  std::unique_ptr<Chunk> no_chunk = std::make_unique<Chunk>();
  std::uint32_t lanes_full = 0;      // see aggregate/lane_room.h
  std::uint32_t lanes_open = 0;      // adopted by a transport and not yet reported closed
  std::uint32_t departed_count = 0;  // ranks that left normally
  std::uint32_t reply_backlog = 0;   // waiting replies, credits and kSummed messages, of all lanes
  // [level]: how many chunks have it; and the highest level that some chunk has.
  std::array<std::uint32_t, kPriorityLevels> chunks_at{};
  std::uint8_t top_level = 0;
  bool limits_unsent = false;       // on its lanes; see LoopLanes::LimitUnsent
  RoundPolicy round_policy{};       // chosen when the core loop gets the job
  bool ending = false;              // kEndJob was executed
  bool faulted = false;             // a fault was reported; the shard only drains
  LongWork* long_work = nullptr;    // the core loop's; null without a loop
  MemoryMetrics* memory = nullptr;  // the exchange's; null: no loop, or the job spans no racks
  schedule::JobTurn turn;           // used by fair_queue.h
  NonFinite non_finite;             // the first sum that was not finite
  Conflict conflict;                // if ranks disagree: what they sent
  ShardIteration iteration;
  CheckpointImage* snapshot = nullptr;          // being taken
  std::uint32_t snapshot_chunks = 0;            // its chunks that were not removed meanwhile
  CheckpointImage* loaded = nullptr;            // rounds of kLoad put it in place
  RoundTrace* trace = nullptr;                  // null: rounds are not traced
  const KeyRemoval* removal = nullptr;          // its keys are unlinked, their replies drain
  std::unique_ptr<ShardSums> sums;              // null: never summed by an aggregator
  exchange::ShardExchange* exchange = nullptr;  // null: the job does not span racks
  std::uint64_t memory_bytes = 0;               // what admission charges, without batches
  ShardMetrics metrics;                         // written by the core loop, read by any thread

  Chunk** chunks() const { return reinterpret_cast<Chunk**>(chunk_table.data()); }
  ShardKey** keys() const { return reinterpret_cast<ShardKey**>(key_table.data()); }
  bool live() const { return !ending && !faulted; }
  // Null: no key has that number.
  ShardKey* FindKey(KeyIndex key) const {
    const bool in_group = key.value >= kGroupKeysFirst;
    const std::uint32_t end = in_group ? kGroupKeysFirst + group_key_end : key_count;
    return key.value < end ? keys()[key.value] : nullptr;
  }
  bool IsHole(const Chunk& chunk) const { return &chunk == no_chunk.get(); }
  // A round of kLoad can put the chunk's state in place.
  bool CheckpointIsLoaded(const Chunk& chunk) const {
    return loaded != nullptr && chunk.index.value < loaded->chunk_count &&
           loaded->chunks[chunk.index.value].ready.load(std::memory_order_relaxed);
  }
};

// Called by control: creates a shard, or keys for it. Masters and state of keys have no pages yet
// (TakePages). Aborts on a config that control should have refused; returns null if out of memory.
std::unique_ptr<JobShard> MakeJobShard(const ShardConfig& config);
std::unique_ptr<KeyBatch> MakeKeyBatch(const ShardConfig& config,
                                       std::span<const KeyShardSpec> keys);
// Creates an image of the chunks of a shard with that many keys, in the shard's order. Its memory
// has no pages yet (TakePages), and admission charges its size. Reads only what control has set, so
// any thread may call it while the chunks exist.
std::unique_ptr<CheckpointImage> MakeCheckpointImage(std::span<const Chunk* const> chunks,
                                                     std::size_t key_count);
// The memory that these will need, for admission. A shard includes the staging of its lanes, which
// control allocates. A batch does not include the parameters.
std::uint64_t JobShardBytes(const ShardConfig& config);
std::uint64_t StagingBytesPerLane(const ShardConfig& config);
std::uint64_t KeyBatchBytes(const ShardConfig& config, std::span<const KeyShardSpec> keys);

}  // namespace phub::server
