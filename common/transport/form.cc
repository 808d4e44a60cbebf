#include "common/transport/form.h"

#include <array>

namespace phub::transport {

ProtocolError FromDecodeError(wire::DecodeError error) {
  switch (error) {
    case wire::DecodeError::kNone: return ProtocolError::kNone;
    case wire::DecodeError::kTruncated: return ProtocolError::kTruncated;
    case wire::DecodeError::kMagic: return ProtocolError::kMagic;
    case wire::DecodeError::kVersion: return ProtocolError::kVersion;
    case wire::DecodeError::kKind: return ProtocolError::kKind;
    case wire::DecodeError::kOperation: return ProtocolError::kOperation;
    case wire::DecodeError::kType: return ProtocolError::kType;
    case wire::DecodeError::kReserved: return ProtocolError::kReserved;
    case wire::DecodeError::kPayloadBytes: return ProtocolError::kPayloadBytes;
  }
  return ProtocolError::kMagic;
}

std::span<const std::byte, wire::kHeaderBytes> KeepAliveHeader() {
  static const std::array<std::byte, wire::kHeaderBytes> header = [] {
    std::array<std::byte, wire::kHeaderBytes> bytes;
    wire::EncodeHeader({.version = wire::kKeepAliveVersion, .kind = wire::MessageKind::kKeepAlive},
                       bytes);
    return bytes;
  }();
  return header;
}

}  // namespace phub::transport
