// Header checks that the receivers of all transports share. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::transport {

// Translates a decoder's error to a transport's error.
ProtocolError FromDecodeError(wire::DecodeError error);

// The encoded header of a keep-alive.
std::span<const std::byte, wire::kHeaderBytes> KeepAliveHeader();

// Whether the payload is received into landing[header.slot]. Other payload is in the message.
constexpr bool LandsInSlot(wire::MessageKind kind) {
  return kind == wire::MessageKind::kGradient || kind == wire::MessageKind::kParameters;
}

}  // namespace phub::transport
