// The sending side of a lane: gradients of ready chunks into free staging slots, each behind the
// hyper-parameter record that it names if this connection has not heard of it yet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "client/lane.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

// Makes every chunk of an active round on this lane key kReady, except those that are kIdle
// because their reply has arrived (starting: all of them), and queues it.
void StartLaneKey(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t lane_key);

// Forgets the connection that the lane had: all slots are free, nothing was announced, and what
// was sent without a reply is ready to be sent again.
void ResetLane(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t slot_count);

// One per engine: the scratch space for a burst.
class Sender {
 public:
  Sender(const EngineConfig& config, EngineCounters& counters);

  // Sends while there are ready chunks, free slots and room in the transport. True if any was sent.
  bool Send(Lane& lane, std::span<EngineKey* const> keys, transport::Transport& transport);

 private:
  // Enough that one call of the transport can gather a megabyte of 64 KiB chunks, twice.
  static constexpr std::size_t kBurst = 32;

  struct Entry {
    std::uint32_t lane_key = 0;
    std::uint32_t chunk = 0;  // gradient
    bool is_record = false;
    RecordVersion announced_before{};  // record
    std::array<std::byte, wire::kHyperParametersBytes> record_bytes;
  };

  std::size_t Gather(Lane& lane, std::span<EngineKey* const> keys);
  void GatherRecord(Lane& lane, const EngineKey& key, std::uint32_t lane_key, std::size_t index);
  void GatherGradient(Lane& lane, EngineKey& key, std::uint32_t lane_key, std::size_t index);
  void Undo(Lane& lane, std::span<EngineKey* const> keys, std::size_t taken, std::size_t count);
  void Account(const Lane& lane, std::span<EngineKey* const> keys, std::size_t taken);

  const EngineConfig& config_;
  EngineCounters& counters_;
  std::array<transport::SendRequest, kBurst> requests_;
  std::array<Entry, kBurst> entries_;
};

}  // namespace phub::client
