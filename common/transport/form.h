// What every transport's receiver says of a header. Pure; any thread.
#pragma once

#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::transport {

// The same refusal, in the words of a transport.
ProtocolError FromDecodeError(wire::DecodeError error);

// Payload of these kinds goes to landing[header.slot]; any other lies in the message.
constexpr bool LandsInSlot(wire::MessageKind kind) {
  return kind == wire::MessageKind::kGradient || kind == wire::MessageKind::kParameters;
}

}  // namespace phub::transport
