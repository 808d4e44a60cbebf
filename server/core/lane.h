// What a core loop keeps of a worker's lane: staging slots, replies that were posted or wait, and
// credits. Created and owned by the shard (job_shard.h); only its core loop uses it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/priority_levels.h"
#include "common/transport/transport.h"

namespace phub::server {

struct Lane {
  enum class State : std::uint8_t { kAbsent, kOpen };
  State state = State::kAbsent;
  bool departed = false;  // the rank left normally
  std::uint8_t transport_index = 0;
  transport::ConnectionId connection{};
  transport::Connection* peer = nullptr;        // kOpen: the connection, owned by control
  std::vector<transport::LandingSlot> landing;  // [slot], in the lane's staging memory
  std::vector<ChunkIndex> slot_chunk;           // [slot]: the chunk staged there, or Max()
  std::uint32_t slots_used = 0;
  std::array<std::uint32_t, kPriorityLevels> slots_at{};  // [level]: those of its chunks
  std::uint32_t staged_in_place = 0;  // gradients staged in shared memory, without a slot
  // Replies: a window, and a bit for each chunk whose reply found the window full.
  std::uint32_t replies_posted = 0;
  std::uint32_t replies_draining = 0;  // those posted before JobShard::removal began
  std::uint32_t replies_pending = 0;
  std::array<std::uint32_t, kPriorityLevels> replies_pending_at{};  // [level]: those of its chunks
  std::uint32_t replies_ahead = 0;            // posted while lower levels wait (reply/window.h)
  std::uint64_t* pending_reply = nullptr;     // bit per chunk: the current version
  std::uint64_t* pending_previous = nullptr;  // bit per chunk: the version before it
  std::uint32_t pending_cursor = 0;           // word at which the next search starts
  std::uint64_t* pending_summed = nullptr;    // bit per chunk: its kSummed message waits
  std::uint32_t summed_pending = 0;           // number of bits set there
  bool decided = false;                       // apply_iteration: has decided on this iteration
  // Credits wait here while the transport's queue is full; at most one per slot.
  struct WaitingCredit {
    ChunkIndex chunk{};
    SlotIndex slot{};
  };
  std::vector<WaitingCredit> credits_waiting;
};

}  // namespace phub::server
