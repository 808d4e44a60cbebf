// The sending side of a lane. A gradient goes out in one of two ways: into a free staging slot, or,
// if it lies in memory that both ends map, from where it lies, which takes no slot. Each goes
// behind the hyper-parameter record that it names, if this connection has not heard of it yet. A
// round that resumes a key sends questions instead.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "client/lane.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

// Makes every chunk of the lane key kReady; QueueUnsent queues them.
void StartLaneKey(Lane& lane, std::uint32_t lane_key);
// Forgets the connection that the lane had: all slots are free, nothing was announced, and what
// was sent without a reply is ready to be sent again. Queues nothing.
void ResetLane(Lane& lane, std::uint32_t slot_count);
// Chooses the way of a lane key that has ready chunks, over the connection that the lane has now,
// and queues it. REQUIRES: the lane is open.
void QueueUnsent(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t lane_key,
                 const transport::Transport& transport);

// One per engine: the scratch space for a burst.
class Sender {
 public:
  Sender(const EngineConfig& config, EngineCounters& counters);

  // Sends while there are ready chunks, room for them and room in the transport. True if any was
  // sent.
  bool Send(Lane& lane, std::span<EngineKey* const> keys, transport::Transport& transport);

 private:
  // Enough that one call of the transport can gather a megabyte of 64 KiB chunks, twice.
  static constexpr std::size_t kBurst = 32;

  enum class Sent : std::uint8_t { kHyperParameters, kGradient, kPull };
  struct Entry {
    Sent sent{};
    bool copied = false;  // the gradient was, into the slot
    std::uint32_t lane_key = 0;
    std::uint32_t chunk = 0;          // not of a record
    HyperVersion announced_before{};  // of a record
    std::array<std::byte, wire::kHyperParametersBytes> record_bytes;
  };

  std::size_t Gather(Lane& lane, std::span<EngineKey* const> keys,
                     const transport::Transport& transport);
  transport::SendRequest& Begin(const Lane& lane, std::size_t at, wire::MessageKind kind);
  void GatherHyperParameters(Lane& lane, const EngineKey& key, std::uint32_t lane_key,
                             std::size_t at);
  void GatherChunk(Lane& lane, const EngineKey& key, std::uint32_t lane_key, std::size_t at,
                   const transport::Transport& transport);
  void FillGradient(Lane& lane, const EngineKey& key, LaneChunk& chunk, std::size_t at,
                    const transport::Transport& transport);
  void Undo(Lane& lane, std::span<EngineKey* const> keys, std::size_t taken, std::size_t count);
  void Account(const Lane& lane, std::span<EngineKey* const> keys, std::size_t taken);

  const EngineConfig& config_;
  EngineCounters& counters_;
  std::array<transport::SendRequest, kBurst> requests_;
  std::array<Entry, kBurst> entries_;
};

}  // namespace phub::client
