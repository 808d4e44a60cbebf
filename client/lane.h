// The engine's state: keys with the round they are in, and lanes with the chunks that travel on
// them. Plain data, owned by the engine, touched by its thread only. Grows when keys are added,
// never while rounds run.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "client/commands.h"
#include "common/base/ids.h"
#include "common/base/mapped_memory.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

struct EngineConfig {
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  std::uint32_t slots_per_lane = 1;
  std::uint32_t lane_count = 1;
  std::uint32_t chunk_bytes = 0;  // what a slot holds; 0: not known
  bool apply_iteration = false;   // see push/iteration_decider.h
  double clip_norm = 0.0;
  bool skip_nonfinite = false;
  bool restart = false;  // pushes of an iteration wait for all replies of the one before
};

// A key and its round. Invariant: active exactly if chunks_left > 0.
struct EngineKey {
  struct Part {
    std::uint32_t lane = 0;
    std::uint32_t lane_key = 0;  // index into Lane::keys
  };
  KeyIndex index{};
  std::int32_t priority = 0;
  std::uint32_t chunk_count = 0;
  numeric::ElementType gradient_type = numeric::ElementType::kF32;
  numeric::ElementType parameter_type = numeric::ElementType::kF32;
  RoundListener* listener = nullptr;
  std::vector<Part> parts;  // the lanes that have chunks of it

  Iteration completed{};  // the last round whose replies have all arrived
  // How far the key is by the job's count, which knows reductions only.
  std::uint64_t first_iteration = 0;
  std::uint64_t reductions = 0;
  std::uint64_t job_iteration() const { return first_iteration + reductions; }

  bool active = false;
  bool held = false;      // waits for other keys, see push/iteration_gate.h
  bool pulling = false;   // the round asks for version `iteration`, and pushes nothing
  bool sent_any = false;  // of this round: it can no longer be withdrawn
  std::uint32_t chunks_left = 0;
  std::uint64_t ticket = 0;
  Iteration iteration{};  // that the round makes, or asks for
  std::uint64_t first_iteration_after = 0;
  std::uint64_t reductions_after = 0;
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  Rank root{};
  numeric::ElementType payload_type = numeric::ElementType::kF32;
  const std::byte* gradients = nullptr;
  std::byte* parameters = nullptr;
  bool parameters_shared = false;
  bool skip = false;  // asks that the iteration be skipped

  // The version of the hyper-parameters that the round names, the one before it (a withdrawn round
  // takes its version back),
  // and what the caller set last (the next push makes a version of it if it differs).
  HyperVersion hyper_version{1};
  wire::HyperParameters announced_values{};
  HyperVersion previous_hyper_version{1};
  wire::HyperParameters previous_values{};
  wire::HyperParameters wanted_values{};
};

// How the chunks of a lane key are sent, which says what they have to wait for.
enum class SendWay : std::uint8_t {
  kSlot,     // a gradient (or nothing) into a staging slot: a free one
  kInPlace,  // a gradient that lies in shared memory: nothing but room in the transport
  kPull,     // a question: kPullsPerLaneMax
};
inline constexpr std::size_t kSendWays = 3;

// Pulls under way on one lane. Replies are bounded by the daemon's own window; this bounds what it
// has to remember, and fills that window.
inline constexpr std::uint32_t kPullsPerLaneMax = 64;

// Chunks of one key on one lane: [first, first + count), in order of offset.
struct LaneKey {
  std::uint32_t key = 0;  // index into the engine's keys
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t cursor = 0;   // chunks before it are not kReady
  SendWay way{};              // of this round on the connection that the lane has now
  bool queued = false;        // in Lane::ready[way]
  HyperVersion announced{1};  // newest version sent on the connection that the lane has now

  std::uint32_t end() const { return first + count; }
};

struct LaneChunk {
  enum class Phase : std::uint8_t {
    kIdle,   // no round
    kReady,  // to be sent
    kSent,   // sent on the connection that the lane has now; its reply is outstanding
  };
  Phase phase = Phase::kIdle;
  SlotIndex inflight = kNoSlot;  // the staging slot that it holds
  std::uint32_t lane_key = 0;
  std::uint32_t element_count = 0;
  std::uint64_t element_offset = 0;  // in the key
  // apply_iteration, of this round: the daemon has said that it is summed, and what of it; this
  // rank has decided about it.
  enum class Sum : std::uint8_t { kUnknown, kTold, kDecided };
  Sum sum = Sum::kUnknown;
  std::uint8_t summed_flags = 0;
  double squared_norm = 0.0;

  std::uint32_t Bytes(numeric::ElementType type) const {
    return element_count * numeric::ElementBytes(type);
  }
  std::uint64_t Offset(numeric::ElementType type) const {
    return element_offset * numeric::ElementBytes(type);
  }
};

struct Lane {
  enum class State : std::uint8_t { kDetached, kOpen, kClosing };
  // Whose gradient was copied into a slot that both ends map.
  struct SlotCopy {
    ChunkIndex chunk = ChunkIndex::Max();
    std::uint64_t ticket = 0;
    friend bool operator==(const SlotCopy&, const SlotCopy&) = default;
  };
  State state = State::kDetached;
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  transport::Connection* owned = nullptr;
  LaneClosed why{};  // filled when the engine closes it

  std::vector<LaneKey> keys;
  std::vector<LaneChunk> chunks;
  // [chunk]: open exactly while the chunk is kSent, so that a stray reply finds no memory.
  std::vector<transport::LandingSlot> landing;
  std::vector<SlotIndex> free_slots;  // a stack; free + held by chunks == slots_per_lane
  std::vector<SlotCopy> copies;       // [slot]
  std::uint32_t chunks_sent = 0;      // that are kSent
  std::uint32_t pulls_under_way = 0;
  // Heaps of lane keys, see push/ready_queue.h.
  std::array<std::vector<std::uint32_t>, kSendWays> ready;
  // apply_iteration: decisions that concern this lane, and whether the last is still to be sent on
  // the connection that it has now.
  std::uint64_t decisions = 0;
  bool decision_due = false;
  // Where payload goes that is not needed: the key's parameters are the shared ones, but this
  // connection does not share them (the lane came back over another transport).
  MappedMemory unwanted;
};

// The engine's own account. One writer, its thread; for tests and for stats at the end.
struct EngineCounters {
  std::uint64_t gradients_sent = 0;
  std::uint64_t gradients_in_place = 0;  // of those: sent from where they lay, in shared memory
  std::uint64_t gradients_copied = 0;    // of those: copied into a slot that both ends map
  std::uint64_t records_sent = 0;
  std::uint64_t pulls_sent = 0;
  std::uint64_t pushes_held = 0;
  std::uint64_t replies = 0;
  std::uint64_t credits = 0;
  std::uint64_t credits_late = 0;  // for a slot that the reply had freed already
  std::uint64_t rounds = 0;
  std::uint64_t sums_told = 0;
  std::uint64_t decisions_sent = 0;
};

}  // namespace phub::client
