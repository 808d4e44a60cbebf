// What a VerbsTransport keeps of one connection. Owned by the transport, touched by its thread
// only.
#pragma once

#include <cstdint>
#include <span>

#include "common/transport/verbs/verbs_transport.h"

namespace phub::transport {

// Completions that are taken at once, and how often in a row: more wait for the next Poll.
inline constexpr std::size_t kCompletionsAtOnce = 64;
inline constexpr std::size_t kQueueTurns = 16;
// A Poll that finds nothing costs some 10 ns, asking the kernel some 300.
inline constexpr std::uint32_t kPollsPerCollect = 64;
inline constexpr DurationNs kCollectInterval = kMillisecond;
inline constexpr int kEventsPerCollect = 256;
// Of the queues' channels in epoll: no connection has this generation.
inline constexpr std::uint32_t kQueueGeneration = 0;

// A work request is named by its connection, and whether it sends: 31 bits of generation, 32 of
// index, 1.
inline constexpr std::uint32_t kGenerationMax = UINT32_MAX >> 1;
enum class Half : std::uint8_t { kSend = 0, kReceive = 1 };

inline std::uint64_t PackId(ConnectionId id) {
  return (static_cast<std::uint64_t>(id.generation) << 32) | id.index;
}
inline ConnectionId UnpackId(std::uint64_t packed) {
  return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
}
inline std::uint64_t WorkRequestId(ConnectionId id, Half half) {
  return PackId(id) << 1 | static_cast<std::uint64_t>(half);
}

struct VerbsTransport::Entry {
  VerbsConnection* connection = nullptr;  // null: the entry is free
  std::span<const LandingSlot> landing;
  std::uint32_t generation = 1;
  std::uint32_t region_hint = 0;
  std::uint32_t empty_tells = 0;
  bool in_ready = false;
  bool forgotten = false;  // kClosed was polled; free from the next Poll on
  bool starved = false;    // until a Release, receiving can do nothing
  bool refused = false;    // its queue was full when something was posted: it waits for room
  // Not kNone: nothing more comes. What has arrived is still to be taken, and then it is over.
  TransportError failed = TransportError::kNone;
  ProtocolError breach = ProtocolError::kNone;    // noted on arrival; ends it in its place
  TransportError ending = TransportError::kNone;  // not kNone: only kSent and kClosed are left
  ProtocolError protocol_error = ProtocolError::kNone;
};

}  // namespace phub::transport
