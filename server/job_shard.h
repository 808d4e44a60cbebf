// One job's part of one core loop: its lanes, its keys, the chunks it owns and their memory.
//
// Ownership. Control builds a JobShard (and every KeyBatch) on its own thread and frees them; from
// kAddJob to kJobEnded only the core loop touches what is inside, without locks. Everything is
// sized when it is built: the core loop never allocates. Address space for chunks_max chunks is
// reserved up front; memory behind it is taken as keys are added, and accumulators are backed by
// memory only once they are touched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mapped_memory.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"
#include "server/commands.h"

namespace phub::server {

// How gradients of a key are combined, and what is done with the result.
enum class Reduction : std::uint8_t { kSum, kMean };
enum class Optimizer : std::uint8_t { kNone, kSgd, kMomentum };

// Policy for a lane that is lost while its job runs.
enum class LossPolicy : std::uint8_t {
  kFail,  // a fault: the job ends
  kWait,  // what it had staged is discarded; the rank may attach a new lane and push again
};

const char* ToString(LossPolicy policy);  // "fail", "wait"

struct ShardConfig {
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  std::uint32_t world_size = 1;
  std::uint32_t chunk_bytes = 64 * 1024;
  std::uint32_t slots_per_lane = 16;
  std::uint32_t replies_per_lane_max = 64;  // replies posted and not yet sent
  LossPolicy on_loss = LossPolicy::kFail;
};

// A key as one shard sees it: the chunks of it that this core loop owns.
struct KeyShardSpec {
  KeyIndex key{};  // keys of a job are added in order, each shard gets every key (perhaps 0 chunks)
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  wire::HyperParameters hyper_parameters{};   // record version 1
  std::vector<std::uint32_t> chunk_elements;  // f32 elements of each owned chunk, in offset order
};

inline constexpr std::uint32_t kRecordsPerKey = 4;  // two can be live at once; see ingest/records.h

struct KeyState {
  struct Record {
    RecordVersion version{};  // 0: empty
    Rank announced_by{};
    wire::HyperParameters values{};
  };
  KeyIndex key{};
  Reduction reduction = Reduction::kSum;
  Optimizer optimizer = Optimizer::kNone;
  Record records[kRecordsPerKey];  // version v lies at v % kRecordsPerKey
};

// A chunk's round: what is known of iteration applied+1, and the memory of the chunk.
struct Chunk {
  ChunkIndex index{};
  float* parameters = nullptr;   // version `applied`; of sum-only keys, the last result
  float* accumulator = nullptr;  // sum of ranks [0, folded_count), if folded_count > 0
  float* momentum = nullptr;     // optimizer state, or null
  KeyState* key = nullptr;
  std::uint32_t element_count = 0;
  Iteration applied{};
  std::uint32_t folded_count = 0;        // ranks [0, folded_count) are in the accumulator
  std::uint32_t staged_count = 0;        // ranks whose gradient lies in a slot
  SlotIndex* staged_slot = nullptr;      // [rank]: where, or kNoSlot
  std::uint64_t* wants_reply = nullptr;  // bit per rank: pushed on the lane it now has
  std::uint64_t optimizer_steps = 0;
  // What the round's first rank said; the others must say the same.
  Rank first_rank{};
  RecordVersion record{};
  wire::RoundOperation operation{};
  Rank root{};
  TimeNs round_since = 0;

  std::uint32_t arrived_count() const { return folded_count + staged_count; }
  std::uint32_t bytes() const { return element_count * static_cast<std::uint32_t>(sizeof(float)); }
  bool HasArrived(Rank rank) const {
    return rank.value < folded_count || staged_slot[rank.value] != kNoSlot;
  }
};

struct Lane {
  enum class State : std::uint8_t { kAbsent, kOpen };
  State state = State::kAbsent;
  bool departed = false;  // the rank left in order
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  transport::Connection* owned = nullptr;
  std::byte* staging = nullptr;                 // slots_per_lane * chunk_bytes
  std::vector<transport::LandingSlot> landing;  // [slot], fixed
  std::vector<ChunkIndex> slot_chunk;           // [slot]: the chunk staged there, or Max()
  std::uint32_t slots_used = 0;
  // Replies: a window, and a bit per chunk for those that found it full.
  std::uint32_t replies_posted = 0;
  std::uint32_t replies_pending = 0;
  std::uint64_t* pending_reply = nullptr;  // bit per chunk
  std::uint32_t pending_cursor = 0;        // word at which the next search starts
  // Credits wait here when the transport's queue is full. Capacity: one per slot, never more.
  struct WaitingCredit {
    ChunkIndex chunk{};
    SlotIndex slot{};
  };
  std::vector<WaitingCredit> credits_waiting;
};

// Keys and chunks ready to be linked into a shard; the memory behind them. Owned by control.
struct KeyBatch {
  MappedMemory parameters;    // zero-filled
  MappedMemory accumulators;  // not backed until touched
  MappedMemory momentum;
  std::vector<SlotIndex> staged_slots;
  std::vector<std::uint64_t> wants_reply;
  std::vector<KeyState> keys;
  std::vector<Chunk> chunks;
  std::uint64_t memory_bytes = 0;  // what admission charges for it
};

struct JobShard {
  ShardConfig config;
  MappedMemory staging;       // of all lanes, prefaulted
  MappedMemory chunk_table;   // Chunk*[kChunksPerShardMax], address space only
  MappedMemory key_table;     // KeyState*[kKeysPerJobMax], address space only
  MappedMemory pending_bits;  // of all lanes, address space only
  std::vector<Lane> lanes;    // [rank]
  std::uint32_t chunk_count = 0;
  std::uint32_t key_count = 0;
  std::uint32_t lanes_full = 0;      // lanes without a free slot
  std::uint32_t lanes_open = 0;      // adopted by a transport and not yet reported closed
  std::uint32_t departed_count = 0;  // ranks that left in order
  std::uint32_t reply_backlog = 0;   // pending replies and waiting credits of all lanes
  bool ending = false;               // kEndJob was executed
  bool faulted = false;              // a fault was reported; the shard only drains
  std::uint64_t memory_bytes = 0;    // what admission charges, without batches

  Chunk** chunks() const { return reinterpret_cast<Chunk**>(chunk_table.data()); }
  KeyState** keys() const { return reinterpret_cast<KeyState**>(key_table.data()); }
  bool live() const { return !ending && !faulted; }
};

// Control's side: builds a shard, or keys for it. Aborts on a config that control should have
// refused; returns null when the memory cannot be had.
std::unique_ptr<JobShard> MakeJobShard(const ShardConfig& config);
std::unique_ptr<KeyBatch> MakeKeyBatch(const ShardConfig& config,
                                       std::span<const KeyShardSpec> keys);
// What the above will take, for admission, without taking it.
std::uint64_t JobShardBytes(const ShardConfig& config);
std::uint64_t KeyBatchBytes(const ShardConfig& config, std::span<const KeyShardSpec> keys);

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

}  // namespace phub::server
