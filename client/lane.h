// The engine's state: keys with the round they are in, and lanes with the chunks that travel on
// them. Plain data, owned by the engine, touched by its thread only. Grows when keys are added,
// never while rounds run.
#pragma once

#include <cstdint>
#include <vector>

#include "client/commands.h"
#include "common/base/ids.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

struct EngineConfig {
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  std::uint32_t slots_per_lane = 1;
  std::uint32_t lane_count = 1;
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
  RoundListener* listener = nullptr;
  std::vector<Part> parts;  // the lanes that have chunks of it

  Iteration completed{};  // the last round whose replies have all arrived
  bool active = false;
  bool sent_any = false;  // of this round: it can no longer be withdrawn
  std::uint32_t chunks_left = 0;
  std::uint64_t ticket = 0;
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  Rank root{};
  const std::byte* gradients = nullptr;
  std::byte* parameters = nullptr;

  // The record that the round names, the one before it (a withdrawn round takes its record back),
  // and what the caller set last (the next push makes a record of it if it differs).
  RecordVersion record{1};
  wire::HyperParameters record_values{};
  RecordVersion previous_record{1};
  wire::HyperParameters previous_values{};
  wire::HyperParameters wanted_values{};
};

// Chunks of one key on one lane: [first, first + count), in order of offset.
struct LaneKey {
  std::uint32_t key = 0;  // index into the engine's keys
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t cursor = 0;    // chunks before it are not kReady
  bool queued = false;         // in Lane::ready
  RecordVersion announced{1};  // newest record said on the connection that the lane has now
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
  std::uint32_t bytes = 0;
  std::uint64_t offset_bytes = 0;
};

struct Lane {
  enum class State : std::uint8_t { kDetached, kOpen, kClosing };
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
  std::vector<std::uint32_t> ready;   // a heap of lane keys, see push/ready_queue.h
};

// The engine's own account. One writer, its thread; for tests and for stats at the end.
struct EngineCounters {
  std::uint64_t gradients_sent = 0;
  std::uint64_t records_sent = 0;
  std::uint64_t replies = 0;
  std::uint64_t credits = 0;
  std::uint64_t credits_late = 0;  // for a slot that the reply had freed already
  std::uint64_t rounds = 0;
};

}  // namespace phub::client
