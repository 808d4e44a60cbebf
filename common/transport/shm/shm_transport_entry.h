// What a ShmTransport keeps of one connection. Owned by the transport, touched by its thread only.
#pragma once

#include <cstdint>
#include <span>

#include "common/transport/shm/shm_transport.h"

namespace phub::transport {

struct ShmTransport::Entry {
  ShmConnection* connection = nullptr;  // null: the entry is free
  std::span<const LandingSlot> landing;
  std::uint32_t generation = 1;
  std::uint32_t served_index = 0;  // where in served_
  bool in_ready = false;
  bool forgotten = false;  // kClosed was polled; free from the next Poll on
  bool starved = false;    // until a Release, receiving can do nothing
  bool peer_gone = false;  // what it wrote is still to be read, and then it is over
  TransportError ending = TransportError::kNone;  // not kNone: only kSent and kClosed are left
  ProtocolError protocol_error = ProtocolError::kNone;
};

}  // namespace phub::transport
