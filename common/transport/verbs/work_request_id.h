// A work request is named by its connection, and by whether it sends: 31 bits of generation, 32 of
// index, 1. So what completes after its connection is gone names nothing. Pure; any thread.
#pragma once

#include <cstdint>

#include "common/transport/connection_table.h"

namespace phub::transport {

enum class Half : std::uint8_t { kSend = 0, kReceive = 1 };

constexpr std::uint64_t WorkRequestId(ConnectionId id, Half half) {
  return PackId(id) << 1 | static_cast<std::uint64_t>(half);
}
constexpr Half HalfOf(std::uint64_t work_request_id) {
  return static_cast<Half>(work_request_id & 1);
}
// Of a connection: generations beyond 31 bits are told apart no more, which takes years.
constexpr bool IsOf(std::uint64_t work_request_id, ConnectionId id) {
  return work_request_id >> 1 == (PackId(id) << 1) >> 1;
}
constexpr std::uint32_t IndexOf(std::uint64_t work_request_id) {
  return static_cast<std::uint32_t>(work_request_id >> 1);
}

}  // namespace phub::transport
