// The engine's state: keys with their current round, and lanes with their chunks. Plain data, owned
// by the engine and used only by its thread. Grows when keys are added, never during rounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "client/commands.h"
#include "common/base/chunk_map.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mapped_memory.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::aggregation {
class DatagramSocket;  // common/aggregation/datagram_socket.h
}

namespace phub::client {

class LaneSums;  // client/sums/lane_sums.h

struct EngineConfig {
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  std::uint32_t slots_per_lane = 1;
  // Slots of a lane that gradients of lower priority classes may hold (ready_queue.h). 0: all,
  // since a daemon does not support the limit.
  std::uint32_t yielding_slots = 0;
  std::uint32_t lane_count = 1;
  std::uint32_t chunk_bytes = 0;  // size of a slot; 0: not known
  bool apply_iteration = false;   // see push/iteration_decider.h
  double clip_norm = 0.0;
  bool skip_nonfinite = false;
  bool report_sent = false;  // RoundListener::OnSent()
  bool restart = false;      // pushes of an iteration wait for all replies of the previous one
  // The shortest of the job's daemons. 0: lanes are neither kept alive nor watched for silence.
  DurationNs liveness_timeout = 0;
  // Jobs whose sums an aggregator may compute: a socket for each lane, which must outlive the
  // engine; elements of a block; ranks of the job. Otherwise empty.
  std::vector<aggregation::DatagramSocket*> sum_sockets = {};
  std::uint32_t sum_block = 0;
  std::uint32_t world_size = 0;
};

// A key and its round. Invariant: active if and only if chunks_left > 0.
struct EngineKey {
  struct Part {
    std::uint32_t lane = 0;
    std::uint32_t lane_key = 0;  // index into Lane::keys
  };
  KeyIndex index{};
  std::uint32_t position = 0;  // in the engine's keys
  bool collective = false;     // outside iterations
  bool pooled = false;         // rounds state their type, operation and length
  std::uint32_t chunk_count = 0;
  // The first chunk's. If all ranks send all chunks, only the last one has another size.
  std::uint32_t chunk_elements = 0;
  numeric::ElementType gradient_type = numeric::ElementType::kF32;
  numeric::ElementType parameter_type = numeric::ElementType::kF32;
  numeric::GradientEncoding encoding = {};
  RoundListener* listener = nullptr;
  // The lanes with chunks of this key. A lane has one part for each run of chunks that this rank
  // sends and receives alike.
  std::vector<Part> parts;

  Iteration completed{};  // the last round whose replies have all arrived
  // The job's iteration of this key: only reductions count.
  std::uint64_t first_iteration = 0;
  std::uint64_t reductions = 0;
  std::uint64_t job_iteration() const { return first_iteration + reductions; }

  // Counts the rounds of collective keys that this rank has started, and wraps; 0 for other keys.
  std::uint32_t order = 0;

  bool active = false;
  bool held = false;               // waits for other keys; see push/iteration_gate.h
  bool pulling = false;            // the round pulls version `iteration` and pushes nothing
  bool sent_any = false;           // a part of this round was sent: it can no longer be withdrawn
  std::uint32_t round_chunks = 0;  // that the round covers: all, except with pooled keys
  std::uint32_t chunks_left = 0;
  std::uint32_t chunks_unsent = 0;  // only with EngineConfig::report_sent
  std::uint64_t ticket = 0;
  Iteration iteration{};  // the version that the round produces or pulls
  std::uint64_t first_iteration_after = 0;
  std::uint64_t reductions_after = 0;
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  Rank root{};
  numeric::ElementType payload_type = numeric::ElementType::kF32;
  const std::byte* gradients = nullptr;
  std::byte* parameters = nullptr;
  bool parameters_shared = false;
  bool skip = false;       // requests that the iteration be skipped
  wire::PoolRound pool{};  // of pooled keys

  // Whether the round's gradients are encoded.
  bool encodes() const { return !encoding.none() && operation == wire::RoundOperation::kReduce; }

  // Version and values of the hyper-parameters that the round names; the previous ones, to restore
  // if the round is withdrawn; and the values that the caller set last. The next push makes a new
  // version if these differ.
  HyperVersion hyper_version{1};
  wire::HyperParameters announced_values{};
  HyperVersion previous_hyper_version{1};
  wire::HyperParameters previous_values{};
  wire::HyperParameters wanted_values{};
};

// How the chunks of a lane key are sent, and the resource that they wait for.
enum class SendWay : std::uint8_t {
  kSlot,     // a gradient (or nothing) in a staging slot; waits for a free slot
  kInPlace,  // a gradient in shared memory, or none (OthersSend()); waits only for room in the
             // transport
  kPull,     // a pull request; waits while kPullsPerLaneMax are in flight
};
inline constexpr std::size_t kSendWays = 3;

// Limit of pulls in flight on one lane. The daemon limits its replies with its own window. This
// limits the requests that it must remember, and is large enough to fill that window.
inline constexpr std::uint32_t kPullsPerLaneMax = 64;

// A lane key in a heap of Lane::ready. Heaps compare nothing else, since a model has thousands of
// keys and looking at each costs a cache miss.
struct ReadyKey {
  std::int32_t priority = 0;
  std::uint32_t order = 0;     // EngineKey::order
  std::uint32_t lane_key = 0;  // in the order in which keys were added

  // Whether `left` is sent later: std:: heaps have the greatest element first.
  friend bool operator<(const ReadyKey& left, const ReadyKey& right) {
    if (left.priority != right.priority) return left.priority < right.priority;
    if (left.order != right.order) return left.order > right.order;
    return left.lane_key > right.lane_key;
  }
};

// Chunks of one key on one lane: [first, first + count), in order of offset.
struct LaneKey {
  std::uint32_t key = 0;  // position in the engine's keys
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::int32_t priority = 0;  // the key's
  std::uint32_t order = 0;    // EngineKey::order of its key
  std::uint8_t level = 0;     // its priority class's
  std::uint32_t cursor = 0;   // chunks before it are not kReady
  bool sends = true;          // this rank sends its chunks' payload
  bool receives = true;       // this rank receives its chunks' payload
  SendWay way{};              // for this round on the lane's present connection
  bool queued = false;        // in Lane::ready[level][way]
  HyperVersion announced{1};  // newest version sent on the lane's present connection

  std::uint32_t end() const { return first + count; }
};

struct LaneChunk {
  enum class Phase : std::uint8_t {
    kIdle,   // no round
    kReady,  // waits to be sent
    kSent,   // sent on the lane's present connection; its reply is outstanding
  };
  Phase phase = Phase::kIdle;
  static constexpr std::uint32_t kNoKey = UINT32_MAX;
  SlotIndex inflight = kNoSlot;  // the staging slot that the chunk holds
  std::uint32_t lane_key = kNoKey;
  std::uint32_t element_count = 0;
  std::uint64_t sent_offset = 0;      // in this rank's gradients, if it sends the chunk
  std::uint64_t received_offset = 0;  // in its parameters, if it receives the chunk
  Rank sender = kEveryRank;
  bool is_streamed = false;  // its reductions may be summed by an aggregator
  // Chunks of pooled keys count their own rounds, since a round covers only the first chunks.
  std::uint64_t pool_rounds = 0;
  // For apply_iteration, in this round. kTold: the daemon has reported the sum's flags and norm.
  // kDecided: this rank has decided the iteration.
  enum class Sum : std::uint8_t { kUnknown, kTold, kDecided };
  Sum sum = Sum::kUnknown;
  std::uint8_t summed_flags = 0;
  double squared_norm = 0.0;

  // A number that no key of this rank has.
  bool is_hole() const { return lane_key == kNoKey; }
  std::uint32_t Bytes(numeric::ElementType type) const {
    return element_count * numeric::ElementBytes(type);
  }
};

// Where the chunk's gradient is in the caller's memory, and where its parameters go. REQUIRES: the
// rank sends it, or receives it.
inline std::uint64_t GradientOffset(const EngineKey& key, const LaneChunk& chunk) {
  if (key.encodes()) {
    return chunk.sent_offset / key.chunk_elements *
           numeric::EncodedStride(key.encoding, key.chunk_elements);
  }
  if (key.pooled) return chunk.sent_offset;
  return chunk.sent_offset * numeric::ElementBytes(key.payload_type);
}
inline std::uint64_t ParameterOffset(const EngineKey& key, const LaneChunk& chunk) {
  if (key.pooled) return chunk.received_offset;
  return chunk.received_offset * numeric::ElementBytes(key.parameter_type);
}
// The bytes of the round in a chunk of a pooled key, whose elements are bytes; 0: the round does
// not cover the chunk.
inline std::uint32_t PooledBytes(const EngineKey& key, const LaneChunk& chunk) {
  const std::uint32_t size = numeric::ElementBytes(key.payload_type);
  const std::uint64_t bytes = key.pool.elements * size;
  if (bytes <= chunk.sent_offset) return 0;
  const std::uint32_t whole = chunk.element_count / size * size;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(whole, bytes - chunk.sent_offset));
}
// Whether other ranks send the payload of the chunk's round: this one sends only its header.
inline bool OthersSend(const EngineKey& key, const LaneKey& lane_key) {
  if (key.operation == wire::RoundOperation::kPoolMove) return key.gradients == nullptr;
  return key.operation == wire::RoundOperation::kMove && !lane_key.sends;
}
inline std::size_t GradientBytes(const EngineKey& key, const LaneChunk& chunk) {
  if (key.encodes()) return numeric::EncodedBytes(key.encoding, chunk.element_count);
  return key.pooled ? PooledBytes(key, chunk) : chunk.Bytes(key.payload_type);
}
inline numeric::ElementType ReplyType(const EngineKey& key) {
  return key.pooled ? key.payload_type : key.parameter_type;
}
// The version that the round makes of the chunk.
inline Iteration IterationOf(const EngineKey& key, const LaneChunk& chunk) {
  return key.pooled ? Iteration{chunk.pool_rounds + 1} : key.iteration;
}
// The size of the chunk's reply.
inline std::uint32_t ReplyBytes(const EngineKey& key, const LaneKey& lane_key,
                                const LaneChunk& chunk) {
  if (key.operation == wire::RoundOperation::kPoolMove && !OthersSend(key, lane_key)) return 0;
  if (key.pooled) return PooledBytes(key, chunk);
  return lane_key.receives ? chunk.Bytes(key.parameter_type) : 0;
}

struct Lane {
  LaneSums* sums = nullptr;  // null: an aggregator never sums its rounds
  enum class State : std::uint8_t { kDetached, kOpen, kClosing };
  // The gradient that was copied into a slot that both ends map.
  struct SlotCopy {
    ChunkIndex chunk = ChunkIndex::Max();
    std::uint64_t ticket = 0;
    friend bool operator==(const SlotCopy&, const SlotCopy&) = default;
  };
  State state = State::kDetached;
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  transport::Connection* owned = nullptr;
  LaneClosed why{};  // set when the engine closes the lane

  std::vector<LaneKey> keys;
  std::vector<std::uint32_t> free_keys;  // places in `keys` of removed ones, whose count is 0
  std::vector<LaneChunk> chunks;
  // [chunk]: open only while the chunk is kSent, so that an unexpected reply cannot write memory.
  std::vector<transport::LandingSlot> landing;
  std::vector<SlotIndex> free_slots;  // a stack; free + held by chunks == slots_per_lane
  std::uint32_t yielding_slots = 0;   // EngineConfig's
  // [level]: how many keys have it, and how many slots their chunks hold.
  std::array<std::uint32_t, kPriorityLevels> keys_at{}, slots_at{};
  std::vector<SlotCopy> copies;   // [slot]
  std::uint32_t chunks_sent = 0;  // chunks in phase kSent
  std::uint32_t pulls_under_way = 0;
  // Heaps of lane keys; see push/ready_queue.h.
  std::array<std::array<std::vector<ReadyKey>, kSendWays>, kPriorityLevels> ready;
  std::uint32_t overtakes = 0;  // chunks sent since one of the lowest class that waits
  // For apply_iteration: decisions for this lane, and whether the last one must still be sent on
  // the present connection.
  std::uint64_t decisions = 0;
  bool decision_due = false;
  // Receives payload that is not needed: the key uses the shared parameters, but this connection
  // does not share memory (the lane was reopened over another transport).
  MappedMemory unwanted;

  void TakeSlot(LaneChunk& chunk) {
    chunk.inflight = free_slots.back();
    free_slots.pop_back();
    ++slots_at[keys[chunk.lane_key].level];
  }
  void ReturnSlot(LaneChunk& chunk) {
    free_slots.push_back(chunk.inflight);
    chunk.inflight = kNoSlot;
    --slots_at[keys[chunk.lane_key].level];
  }
};

// The engine's counters, for tests and final statistics. Written only by the engine's thread.
struct EngineCounters {
  std::uint64_t gradients_sent = 0;
  std::uint64_t gradients_in_place = 0;  // part of gradients_sent: sent in place in shared memory
  std::uint64_t gradients_copied = 0;    // part of gradients_sent: copied into a shared slot
  std::uint64_t records_sent = 0;
  std::uint64_t pulls_sent = 0;
  std::uint64_t pushes_held = 0;
  std::uint64_t replies = 0;
  std::uint64_t credits = 0;
  std::uint64_t credits_late = 0;  // credits for a slot that the reply had already freed
  std::uint64_t rounds = 0;
  std::uint64_t sums_told = 0;
  std::uint64_t decisions_sent = 0;
  std::uint64_t announcements_sent = 0;
  std::uint64_t questions_sent = 0;  // about blocks of parameters (kMissing)
};

}  // namespace phub::client
