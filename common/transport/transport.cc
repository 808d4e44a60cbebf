#include "common/transport/transport.h"

namespace phub::transport {

const char* ToString(TransportError error) {
  switch (error) {
    case TransportError::kNone:
      return "none";
    case TransportError::kPeerClosed:
      return "peer_closed";
    case TransportError::kReset:
      return "reset";
    case TransportError::kProtocol:
      return "protocol";
    case TransportError::kLocalClosed:
      return "local_closed";
  }
  return "unknown";
}

const char* ToString(ProtocolError error) {
  switch (error) {
    case ProtocolError::kNone:
      return "none";
    case ProtocolError::kMagic:
      return "magic";
    case ProtocolError::kVersion:
      return "version";
    case ProtocolError::kKind:
      return "kind";
    case ProtocolError::kOperation:
      return "operation";
    case ProtocolError::kType:
      return "type";
    case ProtocolError::kReserved:
      return "reserved";
    case ProtocolError::kPayloadBytes:
      return "payload_bytes";
    case ProtocolError::kSlotRange:
      return "slot_range";
    case ProtocolError::kSlotClosed:
      return "slot_closed";
    case ProtocolError::kSlotBytes:
      return "slot_bytes";
    case ProtocolError::kTruncated:
      return "truncated";
    case ProtocolError::kSlotReadOnly:
      return "slot_read_only";
    case ProtocolError::kSharedRange:
      return "shared_range";
    case ProtocolError::kRing:
      return "ring";
    case ProtocolError::kDoorbell:
      return "doorbell";
    case ProtocolError::kImmediate:
      return "immediate";
  }
  return "unknown";
}

}  // namespace phub::transport
