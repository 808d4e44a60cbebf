// The id of a work request: its connection (31 bits of generation, 32 bits of index) and whether it
// sends (1 bit). So a completion that comes after its connection closed names no connection. Pure;
// any thread.
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
// Whether the work request belongs to the connection. Generations are compared modulo 2^31; it
// takes years to use that many.
constexpr bool IsOf(std::uint64_t work_request_id, ConnectionId id) {
  return work_request_id >> 1 == (PackId(id) << 1) >> 1;
}
constexpr std::uint32_t IndexOf(std::uint64_t work_request_id) {
  return static_cast<std::uint32_t>(work_request_id >> 1);
}

}  // namespace phub::transport
