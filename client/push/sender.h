// The sending side of a lane. A gradient is sent into a free staging slot or, if it is in memory
// that both ends map, in place without a slot. The hyper-parameters that a gradient names are sent
// before it, unless they were already sent on this connection. A round that resumes a key sends
// pull requests instead.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "client/lane.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

// Makes every chunk of the lane key kReady; QueueUnsent() queues them.
void StartLaneKey(Lane& lane, const EngineKey& key, std::uint32_t lane_key);
// Resets the lane for a new connection: all slots are free, no hyper-parameters were sent, and
// chunks without a reply are ready to be sent again. Queues nothing.
void ResetLane(Lane& lane, std::uint32_t slot_count);
// If the lane key has ready chunks, chooses its way for the present connection and queues it.
// REQUIRES: the lane is open.
void QueueUnsent(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t lane_key,
                 const transport::Transport& transport);

// Sends bursts of messages. One per engine; holds the scratch space for a burst.
class Sender {
 public:
  Sender(const EngineConfig& config, EngineCounters& counters);

  // Sends while there are ready chunks, slots for them and room in the transport. True if anything
  // was sent.
  bool Send(Lane& lane, std::span<EngineKey* const> keys, transport::Transport& transport);

 private:
  // One call of the transport can then send 2 MiB in chunks of 64 KiB.
  static constexpr std::size_t kBurst = 32;

  enum class Sent : std::uint8_t { kHyperParameters, kGradient, kPull };
  struct Entry {
    Sent sent{};
    bool announced = false;  // instead of pushed
    bool again = false;      // the chunk's round was sent before
    bool copied = false;     // the gradient was copied into the slot
    bool in_place = false;   // the gradient is in shared memory
    std::uint32_t lane_key = 0;
    std::uint32_t chunk = 0;          // not for kHyperParameters
    HyperVersion announced_before{};  // for kHyperParameters
    std::array<std::byte, wire::kHyperParametersBytes> record_bytes;
  };

  std::size_t Gather(Lane& lane, std::span<EngineKey* const> keys,
                     const transport::Transport& transport);
  transport::SendRequest& Begin(const Lane& lane, std::size_t at, wire::MessageKind kind);
  void GatherHyperParameters(Lane& lane, const EngineKey& key, std::uint32_t lane_key,
                             std::size_t at);
  void GatherChunk(Lane& lane, const EngineKey& key, std::uint32_t lane_key, std::size_t at,
                   const transport::Transport& transport);
  void FillAnnouncement(Lane& lane, const EngineKey& key, std::size_t at);
  void FillGradient(Lane& lane, const EngineKey& key, LaneChunk& chunk, std::size_t at,
                    const transport::Transport& transport);
  void Undo(Lane& lane, std::size_t taken, std::size_t count);
  void ReportSent(const Lane& lane, std::span<EngineKey* const> keys, std::size_t taken) const;
  void Account(Lane& lane, std::span<EngineKey* const> keys, std::size_t taken);

  const EngineConfig& config_;
  EngineCounters& counters_;
  std::array<transport::SendRequest, kBurst> requests_;
  std::array<Entry, kBurst> entries_;
};

}  // namespace phub::client
